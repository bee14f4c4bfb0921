"""The supervisor: restarts while they help, shrinks to what is there, grows back, and knows a bug from a broken machine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkring.conf.schema import Config, TrainConfig
from sparkring.errors import (
    DeadlinePassed,
    EnvironmentProblem,
    ExecutorLost,
    HostsLeftOut,
    NotEnoughSlots,
    RankDied,
    RankFailed,
    RingError,
    SparkringError,
    Stopped,
    StorageError,
)
from sparkring.pipelines.training.job.job import TrainSummary
from sparkring.spark_jobs.recovery.budget import Failure, HostRecord, RestartBudget
from sparkring.spark_jobs.recovery.resize import resized
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.recovery.supervisor import Supervisor
from sparkring.spark_jobs.spark.progress import SilentProgress
from tests.support import seams
from tests.support.training import train_config

DONE = TrainSummary(steps=100, resumed_at=0)
SAVED = TrainSummary(steps=50, resumed_at=0, interrupted=True)
START_S = 1.0
DIED = RankDied(1, "host-b", -9)
FEW = NotEnoughSlots(wanted=4, slots=2, where="yarn", remedy="add two")


class PretendedRing:
    """A cluster whose generations end as written down; each entry: an error, a summary, or what to do until asked to stop."""

    def __init__(self, *ends: SparkringError | TrainSummary | Callable[[PretendedRing], TrainSummary], slots: int | None = None,
                 committed: int = -1, grows_on_demand: bool = False) -> None:
        self.ends, self.available, self.steps, self.on_demand = list(ends), slots, committed, grows_on_demand
        self.widths: list[int] = []
        self.left_out: list[tuple[str, ...]] = []
        self.asked = threading.Event()
        self.failing_step = 7
        self.looks = 0

    def slots(self) -> int | None:
        self.looks += 1
        return self.available

    def grows_on_demand(self) -> bool:
        return self.on_demand

    def asked_within(self, looks: int) -> bool:
        """Whether it is asked to stop before so many more looks at its slots."""
        until = self.looks + looks
        while self.looks < until and not self.asked.wait(0.02):
            pass
        return self.asked.is_set()

    def run(self, config: Config, left_out: tuple[str, ...], *, stop: StopRequest) -> TrainSummary:
        self.widths.append(config.train.num_ranks)
        self.left_out.append(left_out)
        end = self.ends.pop(0)
        if isinstance(end, SparkringError):
            raise end
        return end if isinstance(end, TrainSummary) else end(self)

    def ask_to_stop(self) -> bool:
        self.asked.set()
        return True

    def committed(self) -> int:
        return self.steps

    def steps_of(self, rank: int) -> int:
        return self.failing_step + rank


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.WIDTH_LOOK_S, 0.01)


class _Notes(SilentProgress):
    def __init__(self, noted: list[str]) -> None:
        self.noted = noted

    def note(self, text: str) -> None:
        self.noted.append(text)


def _supervised(ring: PretendedRing, *, stop: StopRequest | None = None, num_ranks: int = 4, noted: list[str] | None = None,
                **recovery: object) -> TrainSummary:
    config = train_config(Path("/nowhere"), train={
        "num_ranks": num_ranks, "recovery": {"wait_for_slots_s": 0.0, **recovery}, "ring": {"start_timeout_s": START_S}})
    return Supervisor(config, ring, works=lambda _: True, stop=stop or StopRequest(),
                      progress=_Notes([] if noted is None else noted)).run()


def test_failures_are_followed_by_another_generation_until_the_budget_is_used_up() -> None:
    assert _supervised(PretendedRing(DIED, DIED, DIED, DONE)) is DONE
    with pytest.raises(RankDied) as caught:
        _supervised(PretendedRing(DIED, DIED, DIED, DIED, DONE))
    assert "3 restarts brought no new checkpoint" in caught.value.__notes__[0]
    ring = PretendedRing(DIED, DONE)
    with pytest.raises(RankDied):
        _supervised(ring, restarts=0)
    assert ring.widths == [4]


def test_the_budget_is_full_again_after_a_checkpoint() -> None:
    budget = RestartBudget(1)
    lost = Failure("a rank was lost")
    assert [budget.objection(lost, committed=steps) is None for steps in (-1, 10, 20, 20)] == [True, True, True, False]
    budget = RestartBudget(1)  # the one after 600 is damaged, so the run goes on from an older one, and makes new ones of fewer steps
    assert [budget.objection(lost, committed=steps) is None for steps in (600, 510, 520, 520)] == [True, True, True, False]


def test_the_same_exception_at_the_same_step_is_a_bug_and_a_lost_rank_is_not() -> None:
    def raised(message: str) -> RankFailed:
        return RankFailed(1, f"ValueError: {message}", "")

    ring = PretendedRing(raised("a"), raised("b"), raised("a"), DONE, committed=5)
    with pytest.raises(RankFailed) as caught:
        _supervised(ring)
    assert "the same exception came at the same step (8) before" in caught.value.__notes__[0]
    assert len(ring.widths) == 3
    assert _supervised(PretendedRing(DIED, DIED, DONE, committed=5)) is DONE


@pytest.mark.parametrize("name", ["DatasetError", "DatasetChanged", "HostileDataset", "LayoutRefused", "CheckpointDamaged", "Superseded"])
def test_what_only_people_can_mend_is_not_tried_again(name: str) -> None:
    ring = PretendedRing(RankFailed(0, f"{name}: part-0 is gone", ""), DONE)
    with pytest.raises(RankFailed):
        _supervised(ring)
    assert len(ring.widths) == 1
    assert _supervised(PretendedRing(RankFailed(0, "OSError: part-0 is gone", ""), DONE)) is DONE  # the control


def test_a_run_shrinks_to_the_slots_that_are_left_but_not_below_its_least() -> None:
    def executor_lost(ring: PretendedRing) -> TrainSummary:
        ring.available = 3
        raise DIED

    ring = PretendedRing(executor_lost, DONE, slots=4)
    assert _supervised(ring) is DONE
    assert ring.widths == [4, 3]
    with pytest.raises(NotEnoughSlots, match=r"or set train\.recovery\.min_ranks to at most 3") as few:
        _supervised(PretendedRing(executor_lost, DONE, slots=4), min_ranks=4)
    assert (few.value.wanted, few.value.slots) == (4, 3)
    ring = PretendedRing(executor_lost, DONE, slots=4)
    _supervised(ring, shrink=False)
    assert ring.widths == [4, 4]  # the launcher then waits for them


def test_where_spark_itself_is_gone_the_run_ends_in_one_line_and_says_how_to_go_on() -> None:
    class Gone(PretendedRing):
        def slots(self) -> int | None:
            if self.widths:
                raise ConnectionRefusedError(111, "Connection refused")
            return 4

    ring = Gone(RingError("the job has ended"), DONE, committed=20)
    noted: list[str] = []
    with pytest.raises(EnvironmentProblem, match=r"Spark does not answer .*Connection refused.*; run the same command again"):
        _supervised(ring, noted=noted)
    assert ring.widths == [4]
    assert noted == []  # no restart was announced that never came
    _supervised(PretendedRing(RingError("the job has ended"), DONE, slots=4), noted=noted)
    assert noted == ["training: the job has ended; restarting from the last checkpoint (restart 1 of 3)"]  # the control


def test_a_restart_is_announced_with_what_was_found_and_without_the_advice_that_it_makes_needless() -> None:
    noted: list[str] = []
    _supervised(PretendedRing(RankDied(1, "host-b", -9, stderr_tail="last words"), DONE, slots=4), noted=noted)
    assert noted == ["training: rank 1 on host-b was killed by SIGKILL; restarting from the last checkpoint (restart 1 of 3)"]


def test_too_few_slots_for_a_run_that_has_not_begun_are_refused_and_not_shrunk_to() -> None:
    ring = PretendedRing(FEW, DONE, slots=2)
    with pytest.raises(NotEnoughSlots):
        _supervised(ring)
    assert ring.widths == [4]


def _until_spark_is_there(ring: PretendedRing) -> TrainSummary:
    ring.available = 2
    raise FEW


def test_a_command_that_resumes_shrinks_to_the_slots_that_its_first_launch_finds() -> None:
    ring = PretendedRing(_until_spark_is_there, DONE, committed=20)  # before there is a session, nobody knows how many
    assert _supervised(ring) is DONE
    assert ring.widths == [4, 2]


@pytest.mark.parametrize(("committed", "recovery"), [
    pytest.param(-1, {}, id="a new run"), pytest.param(20, {"shrink": False}, id="it may not shrink")])
def test_a_first_launch_without_enough_slots_ends_a_command_that_cannot_shrink(committed: int, recovery: dict[str, Any]) -> None:
    ring = PretendedRing(_until_spark_is_there, DONE, committed=committed)
    with pytest.raises(NotEnoughSlots):
        _supervised(ring, **recovery)
    assert ring.widths == [4]


def test_deaths_on_unknown_hosts_are_not_counted_as_those_of_one_host() -> None:
    noted: list[str] = []
    ring = PretendedRing(RankDied(0, "", -9), RankDied(1, "", -9), DONE, slots=4)
    assert _supervised(ring, noted=noted) is DONE
    assert ring.left_out == [(), (), ()]
    assert not [note for note in noted if "continuing without" in note]


def test_where_slots_come_on_demand_as_many_ranks_as_wanted_wait_for_them_and_then_as_many_as_have_come() -> None:
    ring = PretendedRing(FEW, DIED, FEW, DONE, slots=0, committed=20, grows_on_demand=True)
    assert _supervised(ring, restarts=1) is DONE  # what did not come was no failure
    assert ring.widths == [4, 2, 4, 2]


@pytest.mark.parametrize(("few", "committed", "recovery"), [
    pytest.param(FEW, -1, {}, id="it has not begun"),
    pytest.param(FEW, 20, {"shrink": False}, id="it may not shrink"),
    pytest.param(FEW, 20, {"min_ranks": 3}, id="it needs more"),
    pytest.param(NotEnoughSlots(wanted=4, slots=None, where="yarn", remedy="add some"), 20, {}, id="none came")])
def test_slots_that_do_not_come_on_demand_end_a_run_that_cannot_do_without(
        few: NotEnoughSlots, committed: int, recovery: dict[str, Any]) -> None:
    ring = PretendedRing(few, DONE, slots=0, committed=committed, grows_on_demand=True)
    with pytest.raises(NotEnoughSlots):
        _supervised(ring, **recovery)
    assert ring.widths == [4]


def test_slots_that_spark_tells_of_and_does_not_give_are_none_to_grow_to() -> None:
    def until_there_are_more(ring: PretendedRing) -> TrainSummary:
        assert not ring.asked_within(5), "the four slots that it told of when two came"
        ring.available = 5
        assert ring.asked.wait(10)
        return SAVED

    ring = PretendedRing(FEW, until_there_are_more, DONE, slots=4, committed=20, grows_on_demand=True)
    assert _supervised(ring) is DONE
    assert ring.widths == [4, 2, 4]


def test_a_host_that_is_done_without_stays_so_when_another_one_fails() -> None:
    few = HostsLeftOut(wanted=4, slots=2, slots_left_out=2)
    ring = PretendedRing(DIED, DIED, few, RankDied(0, "host-a", -9), few, DONE, slots=0, committed=20, grows_on_demand=True)
    assert _supervised(ring, restarts=5) is DONE
    assert ring.widths == [4, 4, 4, 2, 4, 2]
    assert ring.left_out[-1] == ("host-b",)


def test_a_host_is_done_without_where_slots_come_on_demand_too() -> None:
    ring = PretendedRing(DIED, DIED, HostsLeftOut(wanted=4, slots=3, slots_left_out=1), DONE, slots=0, committed=20, grows_on_demand=True)
    assert _supervised(ring) is DONE
    assert ring.widths == [4, 4, 4, 3]


def test_it_grows_back_when_slots_return() -> None:
    def until_asked(ring: PretendedRing) -> TrainSummary:
        ring.available = 4
        assert ring.asked.wait(10)
        return SAVED

    ring = PretendedRing(until_asked, DONE, slots=2, committed=20)
    assert _supervised(ring) is DONE
    assert ring.widths == [2, 4]


def test_slots_that_go_again_before_the_larger_ring_is_there_do_not_end_the_run() -> None:
    def until_asked(ring: PretendedRing) -> TrainSummary:
        ring.available = 4
        assert ring.asked.wait(10)
        return SAVED

    def gone_again(ring: PretendedRing) -> TrainSummary:
        ring.available = 2
        raise FEW

    ring = PretendedRing(until_asked, gone_again, DONE, slots=2, committed=20)
    assert _supervised(ring) is DONE
    assert ring.widths == [2, 4, 2]


@pytest.mark.parametrize(("left", "recovery", "widths"), [
    pytest.param(3, {}, [4, 3], id="it goes on with what is left"),
    pytest.param(3, {"shrink": False}, [4], id="the control: it may not shrink"),
    pytest.param(1, {"min_ranks": 2}, [4], id="the control: too few are left")])
def test_a_run_saves_and_shrinks_when_an_executor_is_about_to_go(left: int, recovery: dict[str, Any], widths: list[int]) -> None:
    def until_asked(ring: PretendedRing) -> TrainSummary:
        assert not ring.asked_within(3)
        ring.available = left  # Spark counts the slots of a decommissioned executor no more
        return SAVED if ring.asked_within(5) else DONE

    ring = PretendedRing(until_asked, DONE, slots=4, committed=20)
    assert _supervised(ring, **recovery) is DONE
    assert ring.widths == widths


@pytest.mark.parametrize("slots", [pytest.param((4, 4, 3, 4, 3, 4, 3, 4), id="at one look only"),
                                   pytest.param((4, 3, 3, 3, 3, 3, 4, 4), id="before the executors have come")])
def test_slots_that_are_missing_for_a_moment_end_nothing(slots: tuple[int, ...]) -> None:
    class Flickering(PretendedRing):
        def slots(self) -> int | None:
            super().slots()
            return slots[min(self.looks, len(slots)) - 1]

    ring = Flickering(lambda ring: SAVED if ring.asked_within(8) else DONE)
    assert _supervised(ring) is DONE
    assert ring.widths == [4]


def test_storage_that_is_away_in_the_same_words_is_no_bug() -> None:
    gone = ExecutorLost("Spark ended the ring: an executor is lost", host="host-b")
    ring = PretendedRing(gone, gone, DONE)
    _supervised(ring)
    assert ring.left_out == [(), (), ("host-b",)]
    away = RankFailed(0, "StorageError: s3://bucket/run/checkpoints/5.json: 503 Slow Down", "")
    assert _supervised(PretendedRing(away, away, away, DONE, committed=5)) is DONE
    with pytest.raises(RankFailed) as caught:
        _supervised(PretendedRing(away, away, away, away, DONE, committed=5))
    assert "3 restarts brought no new checkpoint" in caught.value.__notes__[0]


def test_a_run_that_is_asked_to_stop_saves_and_says_so() -> None:
    stop = StopRequest()

    def until_asked(ring: PretendedRing) -> TrainSummary:
        stop.ask("SIGTERM")
        assert ring.asked.wait(10)
        return SAVED

    with pytest.raises(Stopped, match=r"SIGTERM\) after 50 steps"):
        _supervised(PretendedRing(until_asked), stop=stop)


def test_a_run_that_is_asked_to_stop_while_it_waits_for_slots_starts_no_ranks() -> None:
    stop = StopRequest()

    class Waiting(PretendedRing):
        def slots(self) -> int | None:
            if self.widths:
                stop.ask("SIGTERM")
            return super().slots()

    def executor_lost(ring: PretendedRing) -> TrainSummary:
        ring.available = 3
        raise DIED

    ring = Waiting(executor_lost, DONE, slots=4, committed=20)
    with pytest.raises(Stopped, match=r"SIGTERM\) before ranks were started; the same command resumes"):
        _supervised(ring, stop=stop, wait_for_slots_s=30.0)
    assert ring.widths == [4]


def test_a_request_that_storage_does_not_take_is_made_again() -> None:
    stop, tried = StopRequest(), []

    class Away(PretendedRing):
        def ask_to_stop(self) -> bool:
            tried.append(1)
            if len(tried) == 1:
                raise OSError("no route to host")
            return super().ask_to_stop()

    def until_asked(ring: PretendedRing) -> TrainSummary:
        stop.ask("SIGTERM")
        assert ring.asked.wait(10)
        return SAVED

    with pytest.raises(Stopped):
        _supervised(Away(until_asked), stop=stop)
    assert len(tried) == 2


def test_a_request_that_comes_before_there_are_ranks_is_made_again_until_they_hear_it() -> None:
    stop, tried = StopRequest(), []

    class Choosing(PretendedRing):
        def ask_to_stop(self) -> bool:
            tried.append(1)
            return len(tried) > 3 and super().ask_to_stop()

    def until_asked(ring: PretendedRing) -> TrainSummary:
        stop.ask("SIGTERM")
        assert ring.asked.wait(10)
        return SAVED

    with pytest.raises(Stopped):
        _supervised(Choosing(until_asked), stop=stop)
    assert len(tried) == 4


def test_a_run_that_is_asked_to_stop_while_too_few_slots_are_left_says_that_it_stopped() -> None:
    stop = StopRequest()

    class Waiting(PretendedRing):
        def slots(self) -> int | None:
            if self.widths:
                stop.ask("SIGTERM")
                self.available = 0
            return super().slots()

    ring = Waiting(DIED, DONE, slots=4, committed=20)
    with pytest.raises(Stopped, match=r"SIGTERM\) before ranks were started"):
        _supervised(ring, stop=stop, min_ranks=2)
    assert ring.widths == [4]


def test_a_host_that_fails_repeatedly_is_left_out() -> None:
    ring = PretendedRing(DIED, DIED, DONE)
    _supervised(ring)
    assert ring.left_out == [(), (), ("host-b",)]
    stuck = DeadlinePassed("rank 0 waited for rank 1", awaited=(1,), host="host-c")
    ring = PretendedRing(stuck, stuck, DONE)
    _supervised(ring)
    assert ring.left_out == [(), (), ("host-c",)]  # the host of the one that stood still, not of the one that said so
    record = HostRecord(2)
    assert [record.failed(host) for host in ("a", "b", "a", "", "", "a", "a")] == [False] * 6 + [True]
    assert record.left_out == ("a",)


def test_a_run_does_without_a_host_though_fewer_ranks_are_left_then() -> None:
    found = HostsLeftOut(wanted=4, slots=3, slots_left_out=1)

    def asked_by_nobody(ring: PretendedRing) -> TrainSummary:
        assert not ring.asked_within(5), "the slots of the host that is left out are none to grow to"
        ring.available = 5
        return SAVED if ring.asked_within(20) else DONE

    ring = PretendedRing(DIED, DIED, found, asked_by_nobody, DONE, slots=4, committed=20)
    assert _supervised(ring) is DONE
    assert ring.widths == [4, 4, 4, 3, 4]
    assert ring.left_out == [(), (), *[("host-b",)] * 3]


def test_a_run_grows_again_once_a_host_that_it_did_without_is_replaced() -> None:
    found = HostsLeftOut(wanted=4, slots=2, slots_left_out=2)

    def replaced(ring: PretendedRing) -> TrainSummary:
        assert not ring.asked_within(5), "the slots of the host that is left out are none to grow to"
        ring.available = 2
        assert not ring.asked_within(5), "the host has gone, and no other come"
        ring.available = 4
        return SAVED if ring.asked_within(20) else DONE

    ring = PretendedRing(DIED, DIED, found, replaced, DONE, slots=4, committed=20)
    assert _supervised(ring) is DONE
    assert ring.widths == [4, 4, 4, 2, 4]


def test_a_host_is_taken_back_where_leaving_it_out_ends_one_launch_after_another() -> None:
    found = HostsLeftOut(wanted=8, slots=3, slots_left_out=1)  # says the launcher, and that there are more, who counts slots
    ring = PretendedRing(DIED, DIED, found, found, DONE, slots=8, committed=20)
    assert _supervised(ring, num_ranks=8) is DONE
    assert (ring.widths, ring.left_out[-1]) == ([8, 8, 8, 7, 8], ())


@pytest.mark.parametrize("recovery", [{"shrink": False}, {"min_ranks": 4}], ids=str)
def test_a_run_that_cannot_do_without_a_host_takes_it_back(recovery: dict[str, Any]) -> None:
    ring = PretendedRing(DIED, DIED, HostsLeftOut(wanted=4, slots=3, slots_left_out=1), DONE, slots=4, committed=20)
    assert _supervised(ring, **recovery) is DONE
    assert (ring.widths, ring.left_out) == ([4] * 4, [(), (), ("host-b",), ()])


def test_a_rank_s_own_exceptions_and_lost_executors_count_for_their_host_but_storage_s_do_not() -> None:
    def broken(number: int) -> RankFailed:
        return RankFailed(1, f"RuntimeError: CUDA error {number}", "", host="host-b")

    ring = PretendedRing(broken(1), broken(2), DONE)
    _supervised(ring)
    assert ring.left_out == [(), (), ("host-b",)]
    away = RankFailed(0, "StorageError: s3://bucket/run/checkpoints/5.json: 503 Slow Down", "", host="host-b")
    ring = PretendedRing(away, away, DONE)
    _supervised(ring)
    assert ring.left_out == [()] * 3


def test_slots_that_take_longer_to_come_back_than_the_run_would_wait_to_shrink_are_waited_for() -> None:
    class Returning(PretendedRing):
        def slots(self) -> int | None:
            super().slots()
            return 4 if not self.widths or self.looks > 20 else 0

    ring = Returning(DIED, DONE, committed=20)
    assert _supervised(ring) is DONE
    assert ring.widths == [4, 4]

    def for_good(ring: PretendedRing) -> TrainSummary:
        ring.available = 0
        return SAVED

    with pytest.raises(NotEnoughSlots) as none:
        _supervised(PretendedRing(for_good, slots=4, committed=20))  # the control: they do not come
    assert (none.value.wanted, none.value.slots) == (1, 0)
    assert none.value.remedy == "run the same command again, which resumes, once executors are back.", "no number of ranks would do"


@pytest.mark.parametrize("problem", [StorageError("503 Slow Down"), EnvironmentProblem("a task left the meeting")], ids=repr)
def test_what_was_there_when_the_run_began_may_come_back(problem: SparkringError) -> None:
    ring = PretendedRing(DIED, problem, problem, DONE, committed=20)
    assert _supervised(ring) is DONE
    with pytest.raises(type(problem)) as caught:
        _supervised(PretendedRing(DIED, *[problem] * 4, DONE, committed=20))
    assert "3 restarts brought no new checkpoint" in caught.value.__notes__[0]
    with pytest.raises(type(problem)):  # the control: it was never there
        _supervised(PretendedRing(problem, DONE))


@pytest.mark.parametrize("problem", [StorageError("503 Slow Down"), OSError(116, "Stale file handle")], ids=repr)
def test_storage_that_does_not_say_how_far_a_run_is_ends_nothing(problem: OSError) -> None:
    class Away(PretendedRing):
        def committed(self) -> int:
            if len(self.widths) == 1:
                raise problem
            return super().committed()

        def run(self, config: Config, left_out: tuple[str, ...], *, stop: StopRequest) -> TrainSummary:
            if len(self.widths) == 1:
                self.widths.append(config.train.num_ranks)
                raise problem
            return super().run(config, left_out, stop=stop)

    ring = Away(DIED, DIED, DONE, committed=20)
    assert _supervised(ring) is DONE
    assert ring.widths == [4] * 4


def test_what_goes_wrong_in_the_same_words_before_a_rank_has_begun_is_no_bug() -> None:
    budget = RestartBudget(3)
    refused = Failure("rank 1 raised", exception="RuntimeError: Gloo connect timed out", step=-1)
    assert [budget.objection(refused, committed=100) is None for _ in range(4)] == [True, True, True, False]
    at_step = Failure("rank 1 raised", exception="ValueError: a", step=0)
    assert [RestartBudget(3).objection(at_step, committed=-1)] == [None]
    budget = RestartBudget(3)
    assert [budget.objection(at_step, committed=-1) is None for _ in range(2)] == [True, False]


@pytest.mark.parametrize(("wanted", "ranks", "expected"), [
    ({"replicas": [2, 2]}, 3, ((1, 2), 4)), ({"replicas": [2, 2]}, 2, ((1, 1), 2)), ({"replicas": [2, 2]}, 1, ((1,), 1)),
    ({"replicas": [1, 1], "shards": 2}, 3, ((1,), 2)), ({"replicas": [1, 1], "shards": 2}, 1, None),
])
def test_a_layout_shrinks_to_one_that_learns_the_same(wanted: dict[str, object], ranks: int, expected: object) -> None:
    train = TrainConfig(num_ranks=4, parallel={"micro_batches": 8, **wanted})
    found = resized(train, ranks)
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert found.num_micro_batches == train.num_micro_batches == 8
    assert sum(found.replicas) * found.parallel.shards <= ranks
    assert len(found.replicas) == len(expected[0])  # type: ignore[index]


def test_a_layout_that_the_model_does_not_allow_is_passed_over() -> None:
    train = TrainConfig(num_ranks=4, parallel={"replicas": [2, 2], "micro_batches": 4})
    found = resized(train, 3, works=lambda train: len(train.replicas) == 1)
    assert found is not None
    assert (found.replicas, found.num_ranks) == ((2,), 2)
    assert resized(train, 4) is train
