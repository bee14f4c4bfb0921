"""Waiting for Horovod's operations with a deadline, and turning its errors into ours."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError
from torch import Tensor

from sparkring.errors import DeadlinePassed, RingEnded

POLL_S = 0.0002
"""Seconds between two looks at operations that are not done."""


def await_handles(handles: Sequence[int], *, what: str, deadline_s: float) -> None:
    """Wait until Horovod has finished ``handles``. Unlike ``synchronize`` this sleeps between looks, and has a deadline.

    Raises:
        DeadlinePassed: some are not done after ``deadline_s`` seconds. Horovod's own stall check does not work under Gloo.
    """
    until = time.monotonic() + deadline_s
    while not all(hvd.poll(handle) for handle in handles):
        if time.monotonic() > until:
            raise DeadlinePassed(f"{what}: other ranks did not join within {deadline_s:g} s; "
                                 "see the other ranks' last lines, or raise train.ring.deadline_s if they are only slow.")
        time.sleep(POLL_S)


def wait_results(handles: Sequence[int], *, what: str, deadline_s: float) -> list[Tensor]:
    """Wait for operations of Horovod, and return their results.

    Raises:
        DeadlinePassed: some are not done after ``deadline_s`` seconds.
        RingEnded: another rank raised, died or left.
    """
    await_handles(handles, what=what, deadline_s=deadline_s)
    with ring_errors(what):
        return [hvd.synchronize(handle) for handle in handles]


@contextmanager
def ring_errors(what: str) -> Iterator[None]:
    """Raise Horovod's end inside the block as RingEnded, which names the operation ``what``."""
    try:
        yield
    except HorovodInternalError as error:
        raise RingEnded(what, cause=first_sentence(error)) from None


def first_sentence(error: Exception) -> str:
    """The first sentence of Horovod's message."""
    text = str(error).strip()
    return text.splitlines()[0].split(". ")[0][:200] if text else type(error).__name__
