"""Which of several ends is the cause, and which error the driver raises for it."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from sparkring.errors import DeadlinePassed, EnvironmentProblem, PeerSilent, RankDied, RankFailed, RingEnded, RingError
from sparkring.spark_jobs.launch.rank.end import RankEnd, result_to_json, results_or_error

LOST = "HorovodInternalError: Horovod has been shut down"
_SILENT = PeerSilent(rank=1, peer=0, doing="receiving edge f1 0>1", seconds=0.1, ended="rank 0 has ended (it closed its end)")
SILENT = f"PeerSilent: {_SILENT}"


ONE_ROW = """
import sys
import pyarrow as pa
from sparkring.spark_jobs.launch.barrier.task import one_row
row = one_row("é 1")
print("pandas" in sys.modules)
print("pandas" in sys.modules if row.equals(pa.RecordBatch.from_pydict({"end": ["é 1"]})) else row)
"""
"""Whether pandas is loaded after a row was made, and after Arrow's own way made the same one."""


def done(rank: int) -> RankEnd:
    return RankEnd(rank=rank, host="a", kind="done", result={"loss": rank / 2})


def raised(rank: int, summary: str, *, order: int = 0) -> RankEnd:
    return RankEnd(rank=rank, host="a", kind="raised", summary=summary, traceback="Traceback ...", order=order)


def died(rank: int, code: int, *, tail: str = "", order: int = 0) -> RankEnd:
    return RankEnd(rank=rank, host="a", kind="died", exit_code=code, output_tail=tail, order=order)


def ended(rank: int) -> RankEnd:
    return RankEnd(rank=rank, host="a", kind="ended")


def suspended(rank: int) -> RankEnd:
    return RankEnd(rank=rank, host="a", kind="suspended", output_tail=LOST)


def test_a_row_is_made_without_the_import_of_pandas() -> None:
    told = subprocess.run([sys.executable, "-c", ONE_ROW], capture_output=True, text=True, timeout=120, check=True)
    assert told.stdout.split() == ["False", "True"]


def test_results_are_in_rank_order() -> None:
    assert results_or_error([done(2), done(0), done(1)]) == [{"loss": 0.0}, {"loss": 0.5}, {"loss": 1.0}]


@pytest.mark.parametrize(("ends", "kind", "rank"), [
    pytest.param([raised(0, LOST), raised(1, "ValueError: no"), ended(2)], RankFailed, 1, id="a mistake before a lost peer"),
    pytest.param([raised(0, LOST), died(1, -signal.SIGKILL, order=1)], RankDied, 1, id="a kill before a lost peer, though told later"),
    pytest.param([died(0, -signal.SIGABRT), died(1, -signal.SIGKILL, order=1)], RankDied, 1, id="a kill before an abort"),
    pytest.param([raised(0, LOST), died(1, -signal.SIGABRT)], RankDied, 1, id="an abort before a lost peer"),
    pytest.param([died(0, -signal.SIGABRT, tail="what(): gloo::IoException"), raised(1, "OSError: full")], RankFailed, 1,
                 id="a mistake before an abort over a lost peer"),
    pytest.param([raised(1, SILENT), died(0, -signal.SIGKILL, order=1)], RankDied, 0, id="a kill before the next stage's wait, told first"),
    pytest.param([raised(1, SILENT), raised(0, "ValueError: no", order=1)], RankFailed, 0, id="a mistake before the next stage's wait"),
    pytest.param([raised(0, "KeyError: 1", order=1), raised(1, "ValueError: 0")], RankFailed, 1, id="of two mistakes the first"),
    pytest.param([died(0, 3), ended(1)], RankDied, 0, id="an exit without a result"),
    pytest.param([raised(0, "PeerSilent: rank 0 (stage 0, micro-batch 3, RECV_B3) stopped"),
                  died(1, -signal.SIGKILL, order=1)], RankDied, 1,
                 id="a kill before the stage that waited, though told later"),
    pytest.param([raised(0, "RingEnded: gradient allreduce: the ring has ended"), raised(1, "ValueError: no", order=1)], RankFailed, 1,
                 id="a mistake before the ring's end"),
    pytest.param([raised(1, "PeerSilent: rank 1 (stage 1, REDUCE) stopped"), ended(0)], RankFailed, 1,
                 id="a silence that nobody explains"),
])
def test_the_cause_wins_over_what_it_led_to(ends: list[RankEnd], kind: type[RingError], rank: int) -> None:
    with pytest.raises(kind) as caught:
        results_or_error(ends)
    assert isinstance(caught.value, RankFailed | RankDied)
    assert caught.value.rank == rank


@pytest.mark.parametrize("end", [
    pytest.param(died(0, -signal.SIGABRT, tail="gloo::IoException\nwhat(): Wait timeout after 6 seconds for key(s): 1."),
                 id="at the meeting"),
    pytest.param(replace(raised(0, LOST), output_tail="1!: [gradient]\nOne or more rank is stalled for longer than 6 seconds."),
                 id="in an allreduce"),
])
def test_a_wait_for_a_rank_that_still_runs_is_a_deadline(end: RankEnd) -> None:
    with pytest.raises(DeadlinePassed, match=r"rank 0 on a waited longer than train.ring.deadline_s for rank 1 and 2, which still ran"):
        results_or_error([end, ended(1), ended(2)])


def test_a_rank_that_stands_still_is_named_with_its_host_by_those_that_waited_for_it() -> None:
    late = "DeadlinePassed: rank 0 waited 5 s for ranks [1] of its host in gradient buffer 0"
    ends = [replace(raised(0, late, order=1), awaited=(1,)), replace(ended(1), host="b"), replace(raised(2, late), awaited=(1,))]
    with pytest.raises(DeadlinePassed, match=r"rank 2 on a waited longer than train.ring.deadline_s for rank 1, which still ran") as caught:
        results_or_error(ends)
    assert (caught.value.awaited, caught.value.host) == ((1,), "b")
    assert "\nit raised DeadlinePassed: rank 0 waited 5 s" in str(caught.value)
    with pytest.raises(RankFailed, match="ValueError: no"):  # who was late has a reason of its own to tell
        results_or_error([ends[0], raised(1, "ValueError: no", order=2), ended(2)])


def test_a_rank_that_was_suspended_is_named_with_its_host() -> None:
    with pytest.raises(DeadlinePassed, match=r"^rank 1 on a was suspended \(SIGSTOP\) for longer than train.ring.deadline_s") as caught:
        results_or_error([raised(0, LOST), suspended(1), ended(2)])
    assert (caught.value.awaited, caught.value.host) == ((1,), "a")


@pytest.mark.parametrize(("error", "timed_out"), [
    (_SILENT, False), (DeadlinePassed("too late", awaited=[1]), True), (RingEnded("step 3", cause="it shut down"), False)])
def test_a_rank_that_lost_another_one_is_no_cause(error: RingError, timed_out: bool) -> None:
    end = raised(0, f"{type(error).__name__}: {error}")
    assert (end.severity, end.timed_out) == (2, timed_out)
    assert raised(0, "KeyError: 'PeerSilent'").severity == 0, "the control"


def test_what_the_environment_lacks_is_told_in_its_own_words() -> None:
    with pytest.raises(EnvironmentProblem, match=r"^no GPU here$"):
        results_or_error([RankEnd(rank=0, host="a", kind="refused", summary="no GPU here"), ended(1)])


def test_a_rank_without_a_result_is_never_taken_for_a_success() -> None:
    with pytest.raises(RingError, match="rank 1 on a was ended before it had a result"):
        results_or_error([done(0), ended(1)])


def test_an_end_survives_the_way_to_the_driver() -> None:
    for end in (died(1, -9, tail="last words\nof two lines", order=1), replace(raised(0, LOST), awaited=(1, 2))):
        assert RankEnd.from_json(end.to_json()) == end


@pytest.mark.parametrize("result", [{"a": {1, 2}}, object(), 1j])
def test_a_result_that_json_cannot_hold_is_named(result: object) -> None:
    with pytest.raises(TypeError, match=f"returned a {type(result).__name__} that JSON cannot hold"):
        result_to_json(result)
