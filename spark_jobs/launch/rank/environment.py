"""The environment variables of a rank that depend neither on its place nor on the launcher."""

from __future__ import annotations

import math

MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TOP_PAD_": str(1 << 26)}
"""glibc keeps what a step frees for the next step. By default it gives activations back to the kernel and takes new pages,
filled with zeros, at every step: 4,000 page faults and 5 to 8 % of a step of a 7 M parameter encoder (docs/log)."""


def defaults(deadline_s: float) -> dict[str, str]:
    """Variables that the user's own environment may override."""
    return MEMORY | {
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(math.ceil(deadline_s / 2)),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(math.ceil(deadline_s)),
    }


def settings(*, threads: int, deadline_s: float) -> dict[str, str]:
    """Variables that follow from the config and win over what Spark sets (it sets OMP_NUM_THREADS to the executor's cores)."""
    return {
        "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(math.ceil(deadline_s)),
        "PYTHONUNBUFFERED": "1",
    }


def nccl_interface(name: str) -> str:
    """``NCCL_SOCKET_IFNAME`` for one interface: without ``=`` NCCL takes every one whose name begins with it, for eth1 also eth10.

    Source: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html, NCCL_SOCKET_IFNAME
    """
    return f"={name}"


def varies_by_launch(name: str) -> bool:
    """Whether a variable may differ from launch to launch because it is read only after a rank's imports."""
    return name == "CUDA_VISIBLE_DEVICES" or name.startswith(("SPARKRING_", "HOROVOD_"))


def process_name(token: str) -> str:
    """The name of a forked rank's process, within the 15 characters that Linux keeps."""
    return f"rank-{token[:10]}"
