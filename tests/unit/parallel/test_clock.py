"""Times of a device's work, and the cost of steps on a device that is behind the host."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from sparkring.pipelines.parallel.clock import CudaClock, HostClock, clock_of
from sparkring.pipelines.training.strategies.step_times import StepCost, StepTimes


@dataclass
class Event:
    """A mark in a device's work; the device has come to it once it has a time."""

    at_s: float | None = None


class Device:
    """A device that does its work when it is told to; its clock's marks are events, as on a GPU."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._queue: list[float | Event] = []

    def launch(self, seconds: float) -> None:
        """Give it work."""
        self._queue.append(seconds)

    def catch_up(self) -> None:
        """Have it do all of its work, as where the host waits for it."""
        for one in self._queue:
            if isinstance(one, Event):
                one.at_s = self.now_s
            else:
                self.now_s += one
        self._queue.clear()

    def mark(self) -> Event:
        """See Clock."""
        event = Event()
        self._queue.append(event)
        return event

    def passed(self, mark: Event) -> bool:
        """See Clock."""
        return mark.at_s is not None

    def seconds(self, first: Event, last: Event) -> float:
        """See Clock."""
        assert first.at_s is not None, "StepTimes would wait for the device"
        assert last.at_s is not None, "StepTimes would wait for the device"
        return last.at_s - first.at_s

    def host_times(self, marks: Sequence[Event]) -> list[float]:
        """See Clock."""
        raise NotImplementedError


def step_on(device: Device, times: StepTimes, *, compute_s: float, wait_s: float, update_s: float) -> StepCost:
    """A step as training launches it: passes, a wait for other ranks, in which the host waits for the device, and the update."""
    clock = times.clock
    began = clock.mark()
    device.launch(compute_s)
    waiting = clock.mark()
    device.launch(wait_s)
    device.catch_up()
    waited = clock.mark()
    device.catch_up()
    device.launch(update_s)
    return times.end(began, [(waiting, waited)])


def test_a_cpu_s_clock_is_the_host_s() -> None:
    clock = clock_of(torch.device("cpu"))
    assert isinstance(clock, HostClock)
    before, mark, after = time.perf_counter(), clock.mark(), time.perf_counter()
    assert before <= mark <= after
    assert clock.passed(mark)
    assert clock.seconds(1.5, 4.0) == 2.5
    assert clock.host_times([1.5, 4.0]) == [1.5, 4.0]


def test_a_gpu_s_clock_is_its_own() -> None:
    assert isinstance(clock_of(torch.device("cuda:0")), CudaClock)


def test_a_step_s_cost_is_known_at_its_end_on_a_cpu() -> None:
    times = StepTimes(HostClock())
    began = times.clock.mark()
    waits = [(began, began + 1.0), (began + 2.0, began + 2.5)]
    cost = times.end(began, waits)
    assert cost.comm_s == pytest.approx(1.5)
    assert cost.compute_s + cost.comm_s >= 0


def test_a_step_s_cost_is_reported_with_the_next_step_where_the_device_is_behind() -> None:
    device = Device()
    times = StepTimes(device)
    costs = [step_on(device, times, compute_s=3.0 + number, wait_s=1.0, update_s=0.5) for number in range(4)]
    assert costs == [StepCost(0.0, 0.0), StepCost(3.5, 1.0), StepCost(4.5, 1.0), StepCost(5.5, 1.0)]


class HostOf(HostClock):
    """The clock of the host beside a device: it goes on only while the host waits."""

    def __init__(self, device: Device) -> None:
        self.mark = lambda: device.now_s


def test_control_on_the_host_s_clock_the_passes_would_count_as_a_wait() -> None:
    device = Device()
    assert step_on(device, StepTimes(HostOf(device)), compute_s=3.0, wait_s=1.0, update_s=0.5) == StepCost(0.0, 4.0)
