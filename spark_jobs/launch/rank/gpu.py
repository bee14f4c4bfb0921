"""GPUs of ranks: whether the one that Spark assigned can be used, and which device all ranks use.

A ring on GPUs needs a GPU for each rank, CUDA in torch, and a Horovod with NCCL. What is missing is known before the ring starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sparkring.errors import EnvironmentProblem


class AssignedGpu(NamedTuple):
    """The GPU that Spark assigned to a rank's task."""

    host: str
    """Name of the host, for messages."""
    memory: str
    """See ``hosts.memory_identity``: tells apart containers that go by one host name."""
    address: str | None
    """Spark's address of the GPU on that host; None where it assigned none."""


def shared_gpu(assigned: Iterable[AssignedGpu]) -> str | None:
    """Why these GPUs cannot make a ring: two ranks have the same one. None where no two do."""
    counts = Counter(gpu for gpu in assigned if gpu.address is not None)
    found = next((item for item in counts.items() if item[1] > 1), None)
    if found is None:
        return None
    gpu, count = found
    return (f"Spark assigned GPU {gpu.address} on {gpu.host} to {count} ranks, and NCCL needs one for each; set "
            "spark.task.resource.gpu.amount=1, or train.num_ranks to the number of GPUs.")


def gpu_problem() -> str | None:
    """Why the one GPU that this process can see cannot be used, or None. Starts CUDA."""
    import horovod.torch
    import torch

    error = None
    try:
        torch.zeros(1, device="cuda:0")
    except (RuntimeError, AssertionError) as raised:
        error = f"{type(raised).__name__}: {str(raised).strip().partition(chr(10))[0]}"
    return unusable(cuda_error=error, nccl_built=bool(horovod.torch.nccl_built()))


def unusable(*, cuda_error: str | None, nccl_built: bool) -> str | None:
    """Why a rank cannot use its GPU, or None.

    Args:
        cuda_error: What torch raised when it was given a tensor on the GPU.
        nccl_built: Whether Horovod was built with NCCL.
    """
    if cuda_error is None and not nccl_built:
        return "its Horovod was built without NCCL; install one that was built with HOROVOD_GPU_OPERATIONS=NCCL (third_party/horovod)"
    return cuda_error


def common_device(problems: Sequence[str | None], *, allow_cpu_fallback: bool) -> tuple[str, str]:
    """The device of all ranks, which has to be the same.

    Args:
        problems: One for each rank; None where its GPU can be used.
        allow_cpu_fallback: Whether to use CPUs where a GPU cannot be used.
    Returns:
        The device, and a note to show or an empty text.
    Raises:
        EnvironmentProblem: a GPU cannot be used, and CPUs are not allowed instead.
    """
    found = [problem for problem in problems if problem]
    if not found:
        return "cuda:0", ""
    if not allow_cpu_fallback:
        raise EnvironmentProblem(f"device is cuda, but a rank has no usable GPU: {found[0]}; repair that, or set "
                                 "train.ring.allow_cpu_fallback=true.")
    return "cpu", f"all ranks work on the CPU, as allow_cpu_fallback says, since one has no usable GPU: {found[0]}"
