"""GPUs of ranks: whether the one that a rank was given can be used, and which device all ranks use.

A ring on GPUs needs a GPU for each rank, CUDA in torch, and a Horovod with NCCL. Anything missing is reported before the ring starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sparkring.errors import EnvironmentProblem


class AssignedGpu(NamedTuple):
    """The GPU of a rank's task, assigned by Spark or dealt out by the launcher."""

    host: str
    """Name of the host, for messages."""
    memory: str
    """See ``hosts.memory_identity``: tells apart containers of the same host name."""
    address: str | None
    """Its name on that host, for ``CUDA_VISIBLE_DEVICES``; None if there is none for the rank."""
    uuid: str | None
    """``GpuCheck.uuid``: two containers of one host may each call their own GPU 0."""


class GpuCheck(NamedTuple):
    """What a rank found when it used its GPU."""

    problem: str | None
    """The reason that it cannot use it, or None."""
    uuid: str | None
    """CUDA's own name of the GPU, like no other GPU's; None if CUDA cannot use it."""


def shared_gpu(assigned: Iterable[AssignedGpu]) -> str | None:
    """The reason that these GPUs cannot make a ring: two ranks have the same one. None if no two have.

    GPUs of one address are the same unless CUDA gives each another UUID, and those of one UUID are, whatever their addresses.
    """
    by_address: dict[tuple[str, str, str], list[str | None]] = {}
    by_uuid: dict[str, list[str]] = {}
    for gpu in assigned:
        if gpu.address is not None:
            by_address.setdefault((gpu.host, gpu.memory, gpu.address), []).append(gpu.uuid)
        if gpu.uuid is not None:
            by_uuid.setdefault(gpu.uuid, []).append(f"GPU {gpu.address} on {gpu.host}")
    for (host, _, address), uuids in by_address.items():
        if len({uuid for uuid in uuids if uuid is not None}) < len(uuids) > 1:
            return (f"Spark assigned GPU {address} on {host} to {len(uuids)} ranks, and NCCL needs one for each; set "
                    "spark.task.resource.gpu.amount=1, or train.num_ranks to the number of GPUs.")
    for names in by_uuid.values():
        if len(names) > 1:
            return f"{' and '.join(names)} are one GPU or parts of one, and NCCL needs one for each rank; give each rank a GPU of its own."
    return None


def check_gpu() -> GpuCheck:
    """Use the one GPU that this process sees. Starts CUDA."""
    import horovod.torch
    import torch

    error = uuid = None
    try:
        torch.zeros(1, device="cuda:0")
        uuid = str(torch.cuda.get_device_properties("cuda:0").uuid)
    except (RuntimeError, AssertionError) as raised:
        error = f"{type(raised).__name__}: {str(raised).strip().partition(chr(10))[0]}"
    if error is None and not horovod.torch.nccl_built():
        error = "its Horovod was built without NCCL; install one that was built with HOROVOD_GPU_OPERATIONS=NCCL (third_party/horovod)"
    return GpuCheck(problem=error, uuid=uuid)


def common_device(problems: Sequence[str | None], *, allow_cpu_fallback: bool) -> tuple[str, str]:
    """Choose one device for all ranks.

    Args:
        problems: One for each rank; None if its GPU can be used.
        allow_cpu_fallback: Whether to use CPUs if a GPU cannot be used.
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
    return "cpu", f"all ranks use the CPU, as allow_cpu_fallback permits, because a rank has no usable GPU: {found[0]}"
