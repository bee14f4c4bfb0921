"""Waiting for what may take longer than a rank is waited for: storage. All ranks go on telling each other that they are there.

    rank 0    work, in a thread          ----------------------------------------> done
              there? not yet   there? not yet   there? not yet   there? not yet    there? yes
    rank 1    there? yes       there? yes       there? yes       there? yes        there? yes -> go on together

So the deadline is for a rank that says nothing, not for one whose storage is slow: one that was stopped is named within it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from sparkring.pipelines.parallel.collectives.communicator import Communicator

LOOK_S = 1.0
"""Most seconds between two words of a rank."""

T = TypeVar("T")


def wait_keeping_alive(communicator: Communicator, ended: Callable[[float], bool], *, name: str) -> None:
    """Wait until what each rank waits for has ended on all of them.

    Args:
        communicator: Of the ranks, all of which call this.
        ended: Waits so many seconds at most; whether it has ended.
        name: Of the operation between the ranks.
    Raises:
        DeadlinePassed: some rank is silent.
    """
    look_s = min(LOOK_S, communicator.context.deadline_s / 4)
    while not communicator.agree(mine=ended(look_s), name=name):
        pass


def run_keeping_alive(communicator: Communicator, work: Callable[[], T] | None, *, name: str) -> T | None:
    """Do work in a thread, on the ranks that have some, while all wait for it.

    Args:
        communicator: Of the ranks, all of which call this.
        work: Of this rank; it must not use the communicator.
        name: Of the operation between the ranks.
    Returns:
        What ``work`` gave; None without work.
    Raises:
        DeadlinePassed: some rank is silent.
        Exception: what ``work`` raised, on its rank alone.
    """
    if work is None:
        wait_keeping_alive(communicator, lambda _: True, name=name)
        return None
    done = in_thread(work, name="sparkring-storage")
    wait_keeping_alive(communicator, lambda seconds: bool(wait([done], timeout=seconds).done), name=name)
    return done.result()


def in_thread(work: Callable[[], T], *, name: str) -> Future[T]:
    """Do work in a thread of this name, which does not keep a rank alive whose ring has failed (a pool's would)."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 (whoever waits is to hear it)
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
