"""The meeting of the tasks on one machine: all come and gather, or all learn that Spark is to gather."""

from __future__ import annotations

import json
import secrets
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from sparkring.errors import EnvironmentProblem
from sparkring.spark_jobs.launch.meeting.local import LocalMeeting, _socket_name, meet

DEADLINE_S = 30.0


def meetings(partitions: tuple[int, ...], *, num_tasks: int, within_s: float, secret: str = "") -> list[LocalMeeting | None]:
    """What tasks of one launch get that come at once."""
    secret = secret or secrets.token_hex(16)
    with ThreadPoolExecutor(len(partitions)) as threads:
        return list(threads.map(lambda partition: meet(partition, num_tasks=num_tasks, secret=secret, deadline_s=DEADLINE_S,
                                                       within_s=within_s), partitions))


def gathered(tasks: list[LocalMeeting | None], texts: list[str]) -> list[list[str]]:
    """What each task hears when they gather these texts."""
    with ThreadPoolExecutor(len(tasks)) as threads:
        return list(threads.map(lambda task, text: task.gather(text) if task else [], tasks, texts))


def test_tasks_that_all_come_gather_by_partition_again_and_again() -> None:
    tasks = meetings((2, 0, 1), num_tasks=3, within_s=DEADLINE_S)
    assert gathered(tasks, ["c" * 1_000_000, "a", "b"]) == [["a", "b", "c" * 1_000_000]] * 3  # more than a socket holds
    assert gathered(tasks, ["z", "x", "y"]) == [["x", "y", "z"]] * 3
    for task in tasks:
        assert task is not None
        task.close()


def test_one_task_alone_meets_nobody() -> None:
    assert gathered(meetings((0,), num_tasks=1, within_s=0.0), ["a"]) == [["a"]]


@pytest.mark.parametrize("partitions", [pytest.param((0, 1), id="a guest is missing"), pytest.param((1, 2), id="the host is missing")])
def test_where_a_task_stays_away_no_task_takes_the_meeting_for_held(partitions: tuple[int, ...]) -> None:
    assert meetings(partitions, num_tasks=3, within_s=0.2) == [None, None]


def test_a_task_that_leaves_is_missed() -> None:
    host, guest = meetings((0, 1), num_tasks=2, within_s=DEADLINE_S)
    assert host is not None
    assert guest is not None
    guest.close()
    with pytest.raises(EnvironmentProblem, match="a task left the meeting of this ring's tasks"):
        host.gather("a")


def test_who_does_not_know_the_secret_is_no_guest() -> None:
    secret = secrets.token_hex(16)
    with ThreadPoolExecutor(1) as threads, ExitStack() as open_sockets:
        host = threads.submit(meet, 0, num_tasks=2, secret=secret, deadline_s=DEADLINE_S, within_s=1.0)
        for hello in (b"", b"{}", b"[]", b"\xff", json.dumps({"secret": "0" * 32, "partition": 1}).encode()):
            stranger = open_sockets.enter_context(socket.socket(socket.AF_UNIX))
            while stranger.connect_ex(_socket_name(secret)):
                assert not host.done()
            stranger.sendall(hello)
            stranger.shutdown(socket.SHUT_WR)
        assert host.result(DEADLINE_S) is None


def test_a_task_goes_to_spark_where_another_holds_the_place() -> None:
    secret = secrets.token_hex(16)
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(_socket_name(secret))  # nobody can know the name but by the secret
        assert meetings((0, 1), num_tasks=2, within_s=0.1, secret=secret) == [None, None]
