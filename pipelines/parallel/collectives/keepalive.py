"""Keeping ranks alive during slow storage calls: while one works, all keep answering each other within the deadline.

    rank 0    work, in a thread        ---------------------------------> done
              done? no         done? no         done? no         done? yes
    rank 1    done? yes        done? yes        done? yes        done? yes -> both continue

So the deadline catches a rank that does not answer, and not one whose storage is slow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from sparkring.pipelines.parallel.collectives.communicator import Communicator

BEAT_S = 1.0
"""The most seconds between two answers of a rank."""

T = TypeVar("T")


def wait_keeping_alive(communicator: Communicator, ended: Callable[[float], bool], *, name: str) -> None:
    """Wait until every rank's work has ended, keeping all alive.

    Args:
        communicator: The ring; all of its ranks call this.
        ended: Waits at most the given seconds, and returns whether this rank's work has ended.
        name: Name of the operation between the ranks.
    Raises:
        DeadlinePassed: a rank does not answer.
    """
    beat_s = min(BEAT_S, communicator.context.deadline_s / 4)
    while not communicator.agree(mine=ended(beat_s), name=name):
        pass


def run_keeping_alive(communicator: Communicator, work: Callable[[], T] | None, *, name: str) -> T | None:
    """Run work in a thread on the ranks that have some, while all ranks wait for it and stay alive.

    Args:
        communicator: The ring; all of its ranks call this.
        work: This rank's work, or None; it must not use the communicator.
        name: Name of the operation between the ranks.
    Returns:
        The result of ``work``; None without work.
    Raises:
        DeadlinePassed: a rank does not answer.
        Exception: from ``work``, on its rank alone.
    """
    if work is None:
        wait_keeping_alive(communicator, lambda _: True, name=name)
        return None
    done = in_thread(work, name="sparkring-storage")
    wait_keeping_alive(communicator, lambda seconds: bool(wait([done], timeout=seconds).done), name=name)
    return done.result()


def in_thread(work: Callable[[], T], *, name: str) -> Future[T]:
    """Run work in a daemon thread: unlike a pool's, it does not keep the process of a failed rank alive.

    Args:
        work: The work to run.
        name: Name of the thread.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 (the waiting thread raises it)
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
