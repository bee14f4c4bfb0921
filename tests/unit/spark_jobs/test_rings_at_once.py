"""Several rings in one application: how many fit, by slots and by GPUs, and what each of them may have while others run."""

from __future__ import annotations

from typing import Any

import pytest

from sparkring.conf.schema import RingConfig
from sparkring.errors import ConfigError, EnvironmentProblem, NotEnoughSlots
from sparkring.spark_jobs.launch.under_way import RINGS
from sparkring.spark_jobs.ring import run_ring
from sparkring.spark_jobs.spark.rings_at_once import rings_at_once
from sparkring.spark_jobs.spark.task_resources import TaskResources
from tests.support import seams
from tests.support.doctor_samples import session

LOCAL = session(spark__master="local[8]")
CLUSTER = session(spark__master="spark://here:7077")
FOUR = ("0", "1", "2", "3")


def fit(slots: int | None, *, num_ranks: int = 1, asked: int | None = None, launcher: str = "barrier", **limits: Any) -> int:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(seams.RINGS_AT_ONCE_SLOTS_OF, lambda _, resources: 2 if resources and slots else slots)
        return rings_at_once(LOCAL, num_ranks=num_ranks, asked=asked, key="search.at_once", what="trials", launcher=launcher, **limits)


@pytest.mark.parametrize(("num_ranks", "gpus", "rings"), [
    pytest.param(1, None, 8, id="no GPUs wanted"), pytest.param(1, FOUR, 4, id="one for each ring"),
    pytest.param(3, FOUR, 1, id="three for each"), pytest.param(1, (), 8, id="none, where CPUs will do"),
    pytest.param(5, FOUR, 1, id="too few for one ring, where CPUs will do")])
def test_rings_that_the_launcher_deals_gpus_to_are_as_many_as_have_one_for_each_rank(
        num_ranks: int, gpus: tuple[str, ...] | None, rings: int) -> None:
    assert fit(8, num_ranks=num_ranks, gpus=gpus) == rings


def test_slots_are_those_of_ranks_that_take_a_gpu() -> None:
    assert (fit(16), fit(16, resources=TaskResources(cpus=1, gpus=1))) == (16, 2)


def test_more_rings_than_there_are_gpus_for_are_refused() -> None:
    assert fit(8, gpus=FOUR, asked=3) == 3
    for slots in (8, None):
        with pytest.raises(NotEnoughSlots, match=r"local\[8\], for 5 trials of 1 ranks with a GPU for each rank, has 4 of the 5 free slots "
                                                 r"needed at once; set search\.at_once to at most 4"):
            fit(slots, gpus=FOUR, asked=5)


def test_unknown_slots_need_a_number() -> None:
    assert fit(None, asked=3) == 3
    with pytest.raises(EnvironmentProblem, match=r"does not say how many slots it has; set search\.at_once"):
        fit(None, gpus=FOUR)


def test_upstream_s_launcher_runs_one_ring_at_a_time() -> None:
    assert (fit(8, launcher="horovod.spark"), fit(None, launcher="horovod.spark"), fit(8, launcher="horovod.spark", asked=1)) == (1, 1, 1)
    with pytest.raises(ConfigError, match=r"^search\.at_once=2, but launcher horovod\.spark runs one ring at a time; set .* to 1"):
        fit(8, launcher="horovod.spark", asked=2)
    with pytest.raises(NotEnoughSlots, match=r"set train\.num_ranks to at most 2"):
        fit(2, launcher="horovod.spark", num_ranks=3)


def test_a_ring_beside_another_one_leaves_no_host_out_for_which_it_would_need_all_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    left_out: list[tuple[str, ...]] = []

    def run_by_barrier(*_: Any, **given: Any) -> list[Any]:
        left_out.append(tuple(given["left_out"]))
        return []

    monkeypatch.setattr(seams.RING_RUN_BY_BARRIER, run_by_barrier)

    def run() -> None:
        run_ring(print, num_ranks=1, spark=CLUSTER, config=RingConfig(), left_out=("alpha",))

    run()
    with RINGS.one((), most=1):
        run()
    run()
    assert left_out == [("alpha",), (), ("alpha",)]
