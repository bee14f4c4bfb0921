"""GPUs of ranks: whether the one that Spark assigned serves, and what all ranks make of it together."""

from __future__ import annotations

from collections.abc import Iterable

from sparkring.errors import EnvironmentProblem


def cuda_problem() -> str | None:
    """Why the one GPU that this process can see does not serve torch, or None. Starts CUDA."""
    import torch

    try:
        torch.zeros(1, device="cuda:0")
    except (RuntimeError, AssertionError) as error:
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return None


def common_device(problems: Iterable[str | None], *, allow_cpu_fallback: bool) -> tuple[str, str]:
    """The device of all ranks: a ring of which some are on GPUs and some are not would not ring.

    Args:
        problems: One a rank; None where its GPU serves.
        allow_cpu_fallback: Whether to go on without GPUs.
    Returns:
        The device, and a note to show or an empty text.
    Raises:
        EnvironmentProblem: a GPU does not serve, and there is to be no fallback.
    """
    found = [problem for problem in problems if problem]
    if not found:
        return "cuda:0", ""
    if not allow_cpu_fallback:
        raise EnvironmentProblem(f"device is cuda, but a rank has no usable GPU: {found[0]}; repair that, or set "
                                 "train.ring.allow_cpu_fallback=true.")
    return "cpu", f"all ranks work on the CPU, as allow_cpu_fallback says, since one has no usable GPU: {found[0]}"
