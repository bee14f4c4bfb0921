"""What the report says about a run, worked by hand from a few events."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.generators.catalogue import build_schedule
from sparkring.pipelines.parallel.schedules.records import step_record
from sparkring.pipelines.parallel.schedules.schedule import Worker
from sparkring.pipelines.parallel.schedules.simulator import simulate
from sparkring.spark_jobs.reporting.charts.run import learning_pictures
from sparkring.spark_jobs.reporting.facts.run import Planned, RunFacts
from sparkring.spark_jobs.reporting.facts.run_reader import MOST_BARS, read_run

Record = dict[str, Any]
SCHEDULE = build_schedule("1f1b", (1, 1), 4)


def start(rank: int, *, generation: int = 0, size: int = 2, time: float = 100.0, epoch: int = 0, step: int = 0) -> Record:
    return {"event": "start", "time": time, "generation": generation, "rank": rank, "size": size, "host": f"host{rank}", "device": "cpu",
            "lanes": 24, "batch_rows": 1024,
            "dataset_version": 3, "reduction": "ring", "steps_per_epoch": 2, "epochs": 2, "epoch": epoch, "step": step}


def step(rank: int, epoch: int, number: int, *, generation: int = 0, time: float = 101.0, **values: Any) -> Record:
    return {"event": "step", "time": time, "generation": generation, "rank": rank, "epoch": epoch, "step": number, "rows": 5,
            "global_rows": 10, "loss": 0.5, "lr": 0.1, "data_s": 1.0, "compute_s": 2.0, "comm_s": 1.0, "digest": "0", **values}


def timeline(rank: int, epoch: int, *, generation: int = 0, seconds: float = 1.0) -> Record:
    """Of stage ``rank`` of two, a forward pass taking so long."""
    played = simulate(SCHEDULE, Costs.equal(2, forward_s=seconds)).entries[Worker(rank, 0)]
    return {"event": "timeline", "time": 102.0, "generation": generation, "rank": rank, "epoch": epoch, "step": 1,
            **step_record(SCHEDULE, Worker(rank, 0), played, clock_s=0.0)}


def epoch_end(number: int, *, exact: bool = True, generation: int = 0, time: float = 110.0, **validation: float) -> Record:
    return {"event": "epoch", "time": time, "generation": generation, "rank": 0, "epoch": number, "seconds": 9.0, "train_loss": 0.4,
            "rows": 20, "exact": exact, "validation": validation}


def end(rank: int, *, generation: int = 0, time: float = 120.0) -> Record:
    return {"event": "end", "time": time, "generation": generation, "rank": rank, "seconds": 20.0}


def facts_of(*records: Record) -> RunFacts:
    facts = read_run(records)
    assert facts is not None
    return facts


def test_no_records_are_no_run() -> None:
    assert read_run([]) is None


def test_of_dealt_steps_the_stalenesses_are_counted_and_ranks_that_work_at_once_count_together() -> None:
    dealt = facts_of(start(0), start(1), step(0, 0, 0, staleness=0), step(1, 0, 1, staleness=1), step(0, 0, 2, staleness=1))
    assert dealt.stalenesses == {0: 1, 1: 2}
    assert dealt.rows_per_s == pytest.approx(2 * 30 / 12)  # 3 steps of 10 rows and 4 s each, on 2 ranks
    assert facts_of(start(0), step(0, 0, 0)).stalenesses == {}


def test_a_rank_that_only_warned_has_not_started() -> None:
    assert read_run([{"event": "warning", "time": 1.0, "generation": 0, "rank": 0, "text": "checkpoint 7 is damaged"}]) is None


def test_of_several_words_on_the_plan_the_last_one_counts() -> None:
    def plan(measured_s: float, text: str = "") -> Record:
        return {"event": "plan", "time": 105.0, "generation": 0, "rank": 0, "predicted_s": 0.5, "measured_s": measured_s, "steps": 9,
                "text": text}

    facts = facts_of(start(0), step(0, 0, 0), plan(0.9, "slow"), plan(0.6))
    assert facts.planned == Planned(predicted_s=0.5, measured_s=0.6, warning="")
    assert facts_of(start(0), step(0, 0, 0)).planned is None


def test_seconds_add_up_by_rank_and_the_rest_is_other() -> None:
    facts = facts_of(start(0), step(0, 0, 0), step(0, 0, 1, data_s=3.0, time=108.0), end(0, time=115.0),
                     start(1), step(1, 0, 0, comm_s=2.0), step(1, 0, 1), end(1, time=110.0))
    zero, one = (time.seconds for time in facts.times)
    assert (zero.data, zero.compute, zero.comm, zero.other, zero.total) == (4.0, 4.0, 2.0, 5.0, 15.0)
    assert (one.data, one.compute, one.comm, one.other, one.total) == (2.0, 4.0, 3.0, 1.0, 10.0)
    assert facts.mean_time.data == 3.0
    assert [time.hosts for time in facts.times] == [("host0",), ("host1",)]


def test_rows_a_second_count_all_ranks_over_the_mean_rank() -> None:
    # step 0: 10 rows, 4 s on rank 0 and 6 s on rank 1; step 1: 4 rows, 5 s on both
    facts = facts_of(start(0), step(0, 0, 0), step(0, 0, 1, global_rows=4, data_s=2.0),
                     start(1), step(1, 0, 0, comm_s=3.0), step(1, 0, 1, global_rows=4, data_s=2.0))
    assert facts.rows_per_s == pytest.approx(14 / 10)
    assert facts.throughput.y == pytest.approx((10 / 5, 4 / 5))
    assert facts.step_times.comm == pytest.approx((2.0, 1.0))


def test_a_step_done_again_counts_once_in_the_curve_and_twice_in_the_seconds() -> None:
    facts = facts_of(
        start(0, size=1), step(0, 0, 0, loss=0.9), step(0, 0, 1, loss=0.8),
        start(0, size=1, generation=1, time=200.0, step=1), step(0, 0, 1, loss=0.7, generation=1, time=201.0),
        end(0, generation=1, time=204.0))
    assert (facts.steps, facts.repeated_steps) == (2, 1)
    assert facts.loss.raw.high == (0.9, 0.7)
    assert facts.mean_time.compute == 6.0
    assert facts.wall_s == pytest.approx(1.0 + 4.0)
    assert [(ring.from_epoch, ring.from_step, ring.finished) for ring in facts.generations] == [(1, 0, False), (1, 1, True)]


def test_a_ring_that_shrank_keeps_the_lost_rank_in_the_seconds() -> None:
    facts = facts_of(start(0), step(0, 0, 0), start(1), step(1, 0, 0), start(0, size=1, generation=1), step(0, 0, 1, generation=1))
    assert facts.size == 1
    assert [(time.label, time.seconds.compute) for time in facts.times] == [("rank 0", 4.0), ("rank 1", 2.0)]


def test_epochs_are_counted_from_one_and_their_ends_lie_between_steps() -> None:
    facts = facts_of(start(0), step(0, 0, 0), step(0, 0, 1), epoch_end(0, loss=0.3, auc=0.8), step(0, 1, 0), step(0, 1, 1), epoch_end(1))
    assert [(epoch.number, dict(epoch.validation)) for epoch in facts.epochs] == [(1, {"loss": 0.3, "auc": 0.8}), (2, {})]
    assert facts.loss.epoch_ends == (2.5,)


@pytest.mark.parametrize(("flags", "expected"), [
    pytest.param([], None, id="not known before the first epoch ends"),
    pytest.param([True, True], True, id="all exact"),
    pytest.param([True, False], False, id="one epoch missed a row")])
def test_a_run_is_exact_if_every_epoch_was(flags: list[bool], expected: bool | None) -> None:
    assert facts_of(start(0), *(epoch_end(number, exact=flag) for number, flag in enumerate(flags))).exact is expected


def test_losses_that_are_no_numbers_are_counted_and_not_drawn() -> None:
    facts = facts_of(start(0), step(0, 0, 0, loss=0.9), step(0, 0, 1, loss=math.nan), step(0, 1, 0, loss=math.inf), step(0, 1, 1, loss=0.7))
    assert (facts.loss.not_finite, facts.loss.raw.x, facts.loss.raw.high) == (2, (1.0, 4.0), (0.9, 0.7))


def test_a_small_last_step_counts_by_its_rows_and_is_no_spike() -> None:
    steps = [step(0, 0, number, loss=0.5, global_rows=100) for number in range(9)]
    facts = facts_of(start(0), *steps, step(0, 0, 9, loss=9.5, global_rows=1))
    assert (facts.loss.small, facts.loss.raw.high) == (1, (0.5,) * 9)
    assert facts.loss.smooth.y[-1] == 9.5  # a window of one step: nothing to weigh it against
    many = [step(0, 0, number, loss=0.5, global_rows=100) for number in range(79)]
    assert facts_of(start(0), *many, step(0, 0, 79, loss=9.5, global_rows=1)).loss.smooth.y[-1] == pytest.approx((50 + 9.5) / 101)


def test_a_run_without_steps_yet_has_facts_all_the_same() -> None:
    facts = facts_of(start(0), start(1))
    assert (facts.steps, facts.finished, facts.loss.smooth.y) == (0, False, ())
    assert math.isnan(facts.rows_per_s)


def test_warnings_are_kept() -> None:
    warning = {"event": "warning", "time": 1.0, "generation": 0, "rank": 0, "text": "checkpoint 7 is damaged"}
    assert facts_of(warning, start(0)).warnings == ("checkpoint 7 is damaged",)


def test_many_ranks_are_shown_as_means_of_neighbours() -> None:
    facts = facts_of(*(record for rank in range(60) for record in (start(rank, size=60), step(rank, 0, 0, data_s=float(rank)))))
    assert len(facts.times) == 20 <= MOST_BARS  # three ranks a bar
    assert (facts.times[1].label, facts.times[1].seconds.data, facts.times[1].hosts) == ("ranks 3 to 5", 4.0, ("host3", "host4", "host5"))


def test_a_hundred_thousand_steps_make_short_curves() -> None:
    facts = facts_of(start(0, size=1), *(step(0, number // 10_000, number % 10_000, loss=1 / (number + 1)) for number in range(100_000)))
    assert facts.steps == 100_000
    assert max(len(facts.loss.smooth.x), len(facts.loss.raw.x), len(facts.step_times.x), len(facts.throughput.x)) <= 1000
    assert (facts.loss.raw.high[0], facts.loss.raw.low[-1]) == (1.0, 1e-5)


def test_the_last_step_that_all_stages_recorded_is_shown_beside_its_plan() -> None:
    # the ring ended when stage 1 had not come to its record of epoch 1 yet; the next one has not come to any
    facts = facts_of(start(0), timeline(0, 0, seconds=2.0), timeline(0, 1), start(1), timeline(1, 0, seconds=2.0),
                     start(0, generation=1), start(1, generation=1))
    assert facts.step is not None
    assert (facts.step.epoch, facts.step.number, facts.step.schedule) == (1, 2, SCHEDULE)
    for entries in (facts.step.measured, facts.step.plan):
        assert [entry[1:] for entry in entries[Worker(1, 0)][:2]] == [(0.0, 2.0), (2.0, 4.0)]


def test_a_run_without_stages_has_no_step_to_show() -> None:
    assert facts_of(start(0), step(0, 0, 0)).step is None
    assert facts_of(start(0), timeline(0, 0), start(1)).step is None


def test_the_report_says_why_a_run_ended_early_unless_it_went_on() -> None:
    stopped = {"event": "stopped_early", "time": 111.0, "generation": 0, "rank": 0, "epoch": 0, "metric": "loss",
               "text": "ended early: why"}
    facts = facts_of(start(0), step(0, 0, 0), epoch_end(0, loss=0.3), stopped, end(0))
    assert facts.ended_early == "ended early: why"
    went_on = facts_of(start(0), step(0, 0, 0), epoch_end(0, loss=0.3), stopped, start(0, generation=1), epoch_end(1, generation=1))
    assert went_on.ended_early == ""


def test_an_epoch_whose_held_out_loss_is_not_a_number_is_never_the_lowest() -> None:
    run = facts_of(start(0), step(0, 0, 0), *(epoch_end(number, loss=loss) for number, loss in enumerate((math.nan, 0.5, 0.25, math.inf))))
    (by_epoch,) = (picture for picture in learning_pictures(run) if picture.name == "loss-epochs")
    assert by_epoch.caption.startswith("Lowest validation loss 0.2500 after epoch 3.")
