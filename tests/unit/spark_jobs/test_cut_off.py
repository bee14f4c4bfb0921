"""What the driver hears of a ring whose hosts no longer reach each other, by the text with which Spark fails a stage."""

from __future__ import annotations

from sparkring.errors import DeadlinePassed
from sparkring.spark_jobs.launch.barrier.cut_off import CutOff, end_of_stage, lost_end, silent_end
from sparkring.spark_jobs.launch.rank.end import RankEnd

HOSTS = {0: "alpha", 1: "alpha", 2: "beta", 3: "beta", 4: "gamma"}
WAITED = RankEnd(rank=0, host="alpha", kind="raised", summary='DeadlinePassed: rank 0 waited 8 s for "the ring between hosts"')


def _by_spark(end: RankEnd) -> DeadlinePassed:
    """The driver's error, after the end has been in a stack trace of Spark's."""
    text = (f"Job aborted due to stage failure: ... Traceback (most recent call last):\n  File task.py, line 1\n{CutOff(end)}\n\n"
            "\tat org.apache.spark.api.python.BasePythonRunner {}\nCaused by: {}")
    found = end_of_stage(text)
    assert found == end
    error = found.error()
    assert isinstance(error, DeadlinePassed)
    return error


def test_tasks_that_do_not_answer_the_board_are_named_with_their_ranks_and_host() -> None:
    error = _by_spark(silent_end(WAITED, [2, 3], HOSTS))
    assert (error.awaited, error.host) == ((2, 3), "beta")
    assert str(error) == (
        "rank 2 and rank 3 on beta do not answer: the task of rank 0 on alpha heard nothing from there for 17 s after the ring had ended; "
        "see that beta can be reached over the network, and the executors' logs there.\n"
        f"rank 0 on alpha raised {WAITED.summary}")


def test_of_several_hosts_that_do_not_answer_none_is_blamed() -> None:
    error = _by_spark(silent_end(RankEnd(rank=0, host="alpha", kind="ended"), [3, 4], HOSTS))
    assert (error.awaited, error.host) == ((3, 4), "")
    assert "rank 3 on beta and rank 4 on gamma do not answer" in str(error)
    assert str(error).endswith("see that beta and gamma can be reached over the network, and the executors' logs there.")


def test_a_board_that_does_not_answer_is_the_host_of_rank_0() -> None:
    said = "lost contact with the task of rank 0 at 10.0.0.2:4000; see its log."
    error = _by_spark(lost_end(RankEnd(rank=2, host="beta", kind="lost", summary=said), said, HOSTS))
    assert (error.awaited, error.host) == ((0,), "alpha")
    assert str(error).startswith("rank 0 on alpha does not answer: the task of rank 2 on beta lost contact with the task of rank 0 at "
                                 "10.0.0.2:4000; see that alpha can be reached")


def test_other_failures_of_a_stage_are_spark_s() -> None:
    assert end_of_stage("ExecutorLostFailure (executor 1 exited)") is None
