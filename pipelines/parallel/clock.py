"""When a device does a rank's work: marks that are set as work is launched, and read once the device has come to them.

    CPU     a mark is a time of ``time.perf_counter``
    CUDA    a mark is an event on the current stream. Launching work takes no time between two of them, doing it does

On a GPU ``perf_counter`` would time launches, and count the work itself wherever the host happens to wait for the device.
Imports no horovod.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import torch

Mark: TypeAlias = Any
"""A moment, as its clock keeps it."""


class Clock(Protocol):
    """Times the work of one device."""

    def mark(self) -> Mark:
        """Mark the end of the work that this thread has launched; does not wait for it."""
        ...

    def passed(self, mark: Mark) -> bool:
        """Whether the device has come to a mark; does not wait."""
        ...

    def seconds(self, first: Mark, last: Mark) -> float:
        """The seconds between two marks; waits until the device has come to the last."""
        ...

    def host_times(self, marks: Sequence[Mark]) -> list[float]:
        """Recent marks as times of ``time.perf_counter``; waits for the device."""
        ...


class HostClock:
    """The clock of a CPU, which has done its work when a call returns."""

    mark = staticmethod(time.perf_counter)

    def passed(self, _mark: Mark) -> bool:
        """See Clock."""
        return True

    def seconds(self, first: Mark, last: Mark) -> float:
        """See Clock."""
        return float(last - first)

    def host_times(self, marks: Sequence[Mark]) -> list[float]:
        """See Clock."""
        return list(marks)


class CudaClock:
    """The clock of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> Mark:
        """See Clock."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def passed(self, mark: Mark) -> bool:
        """See Clock."""
        return bool(mark.query())

    def seconds(self, first: Mark, last: Mark) -> float:
        """See Clock."""
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    def host_times(self, marks: Sequence[Mark]) -> list[float]:
        """See Clock."""
        now = self.mark()
        now.synchronize()
        host_s = time.perf_counter()
        return [host_s - self.seconds(mark, now) for mark in marks]


def clock_of(device: torch.device) -> Clock:
    """The clock of a device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
