"""The board: what the tasks are told to do, and when."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from sparkring.errors import RingError
from sparkring.spark_jobs.launch.meeting.hosts import LOOPBACK
from sparkring.spark_jobs.launch.meeting.rendezvous import Rendezvous
from sparkring.spark_jobs.launch.meeting.status_board import StatusBoard, StatusBoardClient, Verdict
from tests.support import seams

RUNNING, FINISHED = Verdict(kind="running"), Verdict(kind="finished")


@pytest.fixture
def board() -> StatusBoard:
    return StatusBoard("token", size=2, heartbeat_s=0.01)


@pytest.fixture
def client(board: StatusBoard) -> Iterator[StatusBoardClient]:
    server = Rendezvous(LOOPBACK, board)
    server.start(allowed=[LOOPBACK])
    yield StatusBoardClient(LOOPBACK, server.port, secret="token", heartbeat_s=0.01)
    server.close()


def test_the_ring_is_finished_when_all_ranks_are_done(board: StatusBoard) -> None:
    verdicts = [board.verdict(0)]
    for rank in (1, 0):
        board.report(rank, severity=None)
        verdicts.append(board.verdict(0))
    assert verdicts == [RUNNING, RUNNING, FINISHED]


def test_a_failure_ends_the_ring_with_the_severity_of_the_worst_cause(board: StatusBoard) -> None:
    board.report(0, severity=2)
    assert board.verdict(0) == Verdict(kind="end", severity=2)
    board.report(1, severity=0)
    assert board.verdict(0) == Verdict(kind="end", severity=0)


def test_reports_say_how_many_other_ranks_had_failed_before(board: StatusBoard) -> None:
    assert [board.report(rank, severity=severity) for rank, severity in ((0, None), (1, 2), (1, 2), (0, 0))] == [0, 0, 0, 1]


def test_a_rank_that_is_not_of_the_ring_is_refused(board: StatusBoard) -> None:
    with pytest.raises(ValueError, match="rank 2 is not in a ring of 2"):
        board.report(2, severity=None)
    with pytest.raises(ValueError, match="rank -1 is not in a ring of 2"):
        board.verdict(-1)


def test_a_task_that_waits_hears_of_the_end_at_once(board: StatusBoard, client: StatusBoardClient) -> None:
    heard: list[Verdict] = []
    waiting = threading.Thread(target=lambda: heard.append(client.wait_for_verdict(0)))
    waiting.start()
    for rank in range(2):
        client.report(rank, severity=None)
    waiting.join(timeout=30)
    assert heard == [FINISHED]


def test_a_task_that_asks_no_more_ends_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.STATUS_BOARD_SILENT_AFTER_S, 0.005)  # five rounds
    board = StatusBoard("token", size=3, heartbeat_s=0.001)
    for _ in range(50):  # the control: all ask
        assert [board.verdict(rank) for rank in range(3)] == [RUNNING] * 3
    rounds = 0
    while board.verdict(0) == board.verdict(1) == RUNNING:
        rounds += 1
    assert rounds == 5
    assert board.verdict(2) == Verdict(kind="end", severity=0)


def test_the_server_can_wait_until_every_task_has_left(board: StatusBoard, client: StatusBoardClient) -> None:
    waiting = threading.Thread(target=board.wait_until_left, kwargs={"within_s": 30})
    waiting.start()
    client.leave(0)
    assert waiting.is_alive()
    client.leave(1)
    waiting.join(timeout=30)
    assert not waiting.is_alive()


def test_the_board_names_who_has_not_left_and_knows_whether_any_who_has_told_a_cause(board: StatusBoard) -> None:
    board.report(0, severity=2)
    board.leave(0)
    assert board.wait_until_left(within_s=0) == (1,)
    knew = [board.knows_cause]
    board.report(1, severity=0)
    knew.append(board.knows_cause)
    board.leave(1)
    assert [*knew, board.knows_cause] == [False, False, True], "rank 0 only waited; what rank 1 told may not reach the driver until it left"
    assert board.wait_until_left(within_s=0) == ()


def test_a_board_that_is_gone_is_an_error_that_names_it(board: StatusBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.STATUS_BOARD_LOST_AFTER_TRIES, 1)
    server = Rendezvous(LOOPBACK, board)
    server.close()
    client = StatusBoardClient(LOOPBACK, server.port, secret="token", heartbeat_s=0.01)
    with pytest.raises(RingError, match=f"lost contact with the task of rank 0 at {LOOPBACK}:{server.port}"):
        client.wait_for_verdict(0)
