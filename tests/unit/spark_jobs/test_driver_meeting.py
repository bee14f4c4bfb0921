"""Tasks of a plain stage meet at the driver: all or none, each once, within a time, and nobody else."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkring.errors import DeadlinePassed, EnvironmentProblem, ExecutorLost
from sparkring.spark_jobs.launch.meeting import guarded_server
from sparkring.spark_jobs.launch.meeting.driver import DriverMeeting, DriverMeetingClient
from sparkring.spark_jobs.launch.meeting.hosts import LOOPBACK

SECRET = "0123456789abcdef0123456789abcdef"
LONG_S = 30.0
Guests = Callable[..., "Future[list[str]]"]


@contextmanager
def _meeting(num_tasks: int = 2, *, within_s: float = LONG_S, deadline_s: float = LONG_S) -> Iterator[tuple[DriverMeeting, Guests]]:
    """A meeting, and a way to have a task gather a text there."""
    with ThreadPoolExecutor(8) as pool, DriverMeeting(
            LOOPBACK, secret=SECRET, num_tasks=num_tasks, within_s=within_s, deadline_s=deadline_s) as meeting:
        guests: dict[tuple[int, int], DriverMeetingClient] = {}

        def gather(partition: int, text: str, *, attempt: int = 0) -> Future[list[str]]:
            if (partition, attempt) not in guests:
                guests[partition, attempt] = _guest(meeting.address, partition, attempt)
            return pool.submit(guests[partition, attempt].gather, text, within_s=LONG_S)

        yield meeting, gather


def _guest(address: tuple[str, int], partition: int, attempt: int = 0, *, secret: str = SECRET) -> DriverMeetingClient:
    context = SimpleNamespace(partitionId=lambda: partition, taskAttemptId=lambda: 100 * attempt + partition)
    return DriverMeetingClient(cast(Any, context), address, secret=secret)


def _await_come(meeting: DriverMeeting, number: int) -> None:
    until = time.monotonic() + LONG_S
    while meeting.num_come < number:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_everyone_hears_everyone_by_partition_round_after_round() -> None:
    with _meeting(3) as (meeting, gather):
        for told in ("a", "b"):
            answers = [gather(partition, f"{told}{partition}") for partition in (2, 0, 1)]
            assert [answer.result(LONG_S) for answer in answers] == [[f"{told}0", f"{told}1", f"{told}2"]] * 3
        assert meeting.num_come == 3


def test_a_task_knows_the_address_by_which_it_speaks_to_the_driver() -> None:
    with _meeting() as (meeting, _), ThreadPoolExecutor(2) as pool:
        guests = [_guest(meeting.address, partition) for partition in range(2)]
        assert list(pool.map(lambda guest: guest.hosts(within_s=LONG_S), guests)) == [[LOOPBACK, LOOPBACK]] * 2


def test_who_comes_too_late_or_waits_in_vain_hears_so_and_the_driver_knows_how_many_came() -> None:
    with _meeting(within_s=0.2) as (meeting, gather):
        with pytest.raises(DeadlinePassed, match="did not come"):
            gather(0, "in vain").result(LONG_S)
        with pytest.raises(DeadlinePassed, match="did not come"):
            gather(1, "too late").result(LONG_S)
        assert meeting.num_come == 1


def test_a_task_that_is_silent_in_a_later_round_is_not_waited_for_for_long() -> None:
    with _meeting(deadline_s=0.2) as (_, gather):
        for answer in [gather(0, "a"), gather(1, "b")]:
            answer.result(LONG_S)
        with pytest.raises(DeadlinePassed, match="did not come"):
            gather(0, "c").result(LONG_S)


def test_a_task_that_was_lost_before_all_had_come_is_taken_in_anew() -> None:
    with _meeting() as (meeting, gather):
        lost = gather(0, "lost")
        _await_come(meeting, 1)
        anew = gather(0, "anew", attempt=1)
        with pytest.raises(ExecutorLost):  # if it still lives
            lost.result(LONG_S)
        assert meeting.num_come == 1
        assert gather(1, "other").result(LONG_S) == anew.result(LONG_S) == ["anew", "other"]
        assert meeting.lost is None


def test_a_task_that_was_replaced_in_time_and_hears_of_it_late_is_no_loss() -> None:
    with _meeting() as (meeting, gather):
        for answer in [gather(0, "anew", attempt=1), gather(1, "other")]:
            answer.result(LONG_S)
        with pytest.raises(ExecutorLost):
            gather(0, "the one before", attempt=0).result(LONG_S)
        assert meeting.lost is None


def test_a_task_that_was_lost_afterwards_is_no_second_rank() -> None:
    with _meeting() as (meeting, gather):
        for answer in [gather(0, "a"), gather(1, "b")]:
            assert answer.result(LONG_S) == ["a", "b"]
        assert str(meeting.lost) == "None"
        with pytest.raises(ExecutorLost, match=r"Spark lost task 1 of the ring on b, .* and restarted it"):
            gather(1, "anew", attempt=1).result(LONG_S)
        assert str(meeting.lost).startswith("Spark lost task 1")
        for answer in [gather(0, "c"), gather(1, "d")]:  # the control: those that are in it go on
            assert answer.result(LONG_S) == ["c", "d"]


@pytest.mark.parametrize("sent", [
    b"\n", b"GET / HTTP/1.1\r\n\r\n", b"\x80\x04\x95pickle\n", b"[]\n", b"[" * 9000 + b"\n", b"x" * (guarded_server.MAX_HEAD_BYTES + 1),
    *(json.dumps({"secret": SECRET, "round": 0, "partition": 0, "attempt": 0, "text": "", **wrong}).encode() + b"\n"
      for wrong in ({"secret": "0" * 32}, {"secret": 1}, {"round": 99}, {"round": -1}, {"round": None}, {"partition": 2}, {"more": 1}))])
def test_strangers_and_nonsense_are_hung_up_on_and_change_nothing(sent: bytes) -> None:
    with _meeting() as (meeting, gather):
        with socket.create_connection(meeting.address, timeout=LONG_S) as connection:
            with suppress(ConnectionError):  # it may hang up before it has read all
                connection.sendall(sent)
            with suppress(OSError):  # "not connected", for the same reason
                connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        assert meeting.num_come == 0
        for answer in [gather(0, "a"), gather(1, "b")]:
            assert answer.result(LONG_S) == ["a", "b"]


def test_a_driver_that_cannot_be_reached_or_hangs_up_is_said_with_what_to_do() -> None:
    with _meeting() as (meeting, gather):
        waiting = gather(0, "a")
        _await_come(meeting, 1)
    with pytest.raises(EnvironmentProblem, match=r"cannot reach the driver at 127\.0\.0\.1:\d+ .*dynamicAllocation.enabled=false"):
        waiting.result(LONG_S)
    with pytest.raises(EnvironmentProblem, match="Connection refused"):
        _guest(meeting.address, 0).gather("", within_s=1.0)


def test_nothing_is_left_of_it_not_even_a_thread_that_would_still_wait_for_the_others() -> None:
    before = set(threading.enumerate())
    with _meeting(within_s=10 * LONG_S) as (meeting, gather):
        waiting = gather(0, "a")
        _await_come(meeting, 1)
    assert isinstance(waiting.exception(LONG_S), EnvironmentProblem)
    until = time.monotonic() + LONG_S
    while left := [thread.name for thread in set(threading.enumerate()) - before]:
        assert time.monotonic() < until, left
        time.sleep(0.01)
