"""A process beside a rank that ends the rank if it is suspended (SIGSTOP) for too long. For ranks that no task of ours watches.

    python -m sparkring.spark_jobs.launch.rank.suspension PID LIMIT_S LAST_WORDS

While one rank is stopped, the others wait for it, and report it after their deadline. If all are stopped, none can report it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress

import psutil

from sparkring.spark_jobs.launch.rank.fresh import is_suspended

LOOK_S = 1.0
SUSPENDED_GRACE_S = 10.0
"""Seconds past the deadline in which the other ranks may report a suspended one, since they know what they wait for."""


def guard_against_suspension(*, limit_s: float, last_words: str) -> None:
    """Start the process beside this one; it ends with this one.

    Args:
        limit_s: Seconds that this process may be stopped.
        last_words: A line for standard error, written when this process is ended.
    """
    subprocess.Popen([sys.executable, "-m", __name__, str(os.getpid()), str(limit_s), last_words],
                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
                     env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


def main() -> None:
    """Watch the process until it has ended."""
    rank, limit_s, last_words = psutil.Process(int(sys.argv[1])), float(sys.argv[2]), sys.argv[3]
    looks = 0  # not seconds: while this host was suspended, nobody stopped the rank
    while rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE and looks * LOOK_S < limit_s:
        time.sleep(LOOK_S)
        looks = looks + 1 if is_suspended(rank.pid) else 0
    if is_suspended(rank.pid):
        sys.stderr.write(f"{last_words}\n")
        sys.stderr.flush()
        for process in (*_others(rank), rank):  # upstream waits for all that may still write for this rank
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _others(rank: psutil.Process) -> list[psutil.Process]:
    """All that the rank started, but for this process."""
    return [process for process in rank.children(recursive=True) if process.pid != os.getpid()]


if __name__ == "__main__":
    main()
