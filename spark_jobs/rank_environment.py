"""The environment variables of a rank that do not depend on its place, whoever launches it."""

from __future__ import annotations

import math


def defaults(deadline_s: float) -> dict[str, str]:
    """Variables that the user's own environment may override."""
    return {
        "HOROVOD_CYCLE_TIME": "5",  # milliseconds; Horovod's thread wakes at each, and here cores are scarcer than latency
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
