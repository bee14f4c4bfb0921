"""A rank that slows the others down is reported in time, with its cause; an even ring reports none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import pytest

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.pipelines.data.loading.loader import Batch, Loader
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training import train_rank as loop
from sparkring.pipelines.training.events.slow_ranks import OBSERVED_S
from sparkring.pipelines.training.events.writer import read_events
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.strategies.step import train_step
from sparkring.spark_jobs.reporting.facts.run_reader import read_run
from tests.support import seams
from tests.support.training import begin_checkpoints_on_the_dot, train_config

INTERVAL = 10
"""Steps between two checkpoints."""
SLOW_STEPS = 10
"""The first steps. One interval of them has the seconds of training that a report is about, three of the others have."""
USUAL_S, PAUSE_S = 0.2, 0.4
"""Of any step, and what a slow one takes on top: next to them, what other work on this machine takes from a rank is little."""
SLOW_RANK = 1

pytestmark = pytest.mark.parallel


def _train(context: RankContext, job: dict[str, Any], what: Literal["data", "compute", ""]) -> None:
    """Train; every rank takes a while over each step, one over some steps longer, as it waits for rows or as it computes."""
    begin_checkpoints_on_the_dot()
    done = 0

    def pause_s(part: Literal["data", "compute"]) -> float:
        slow = what == part and context.rank == SLOW_RANK and done < SLOW_STEPS
        return USUAL_S / 2 + (PAUSE_S if slow else 0)

    epoch = Loader.epoch

    def read(self: Loader, number: int, *, first_step: int = 0) -> Iterator[Batch]:
        for batch in epoch(self, number, first_step=first_step):
            time.sleep(pause_s("data"))
            yield batch

    class Paused:
        """A batch that takes its time when its rows are asked for, which is inside the step."""

        def __init__(self, batch: Batch) -> None:
            self._batch = batch

        def __getattr__(self, name: str) -> Any:
            if name == "tensors":
                time.sleep(pause_s("compute") / 2)  # asked for twice a step: features and labels
            return getattr(self._batch, name)

    def step(model: Any, batch: Any, *rest: Any, **named: Any) -> Any:
        nonlocal done
        result = train_step(model, Paused(batch), *rest, **named)  # type: ignore[arg-type]
        done += 1
        return result

    with patch(seams.LOADER_EPOCH, read), patch(seams.STRATEGY_TRAIN_STEP, step):
        loop.train_rank(context, job)


def _events(folder: Path, what: str, *, num_steps: int) -> list[dict[str, Any]]:
    write_dataset(folder / "dataset", ([5 * num_steps, 5 * num_steps], [200]))
    config = train_config(folder, model={"hidden": [4]}, train={"epochs": 1, "batch_rows": 10, "checkpoint_steps": INTERVAL})
    job = TrainJob(config=config, dataset_url=str(folder / "dataset"), dataset_version=1, run_url=str(folder / "run"), generation=0,
                   lanes=24)
    run_on_ranks(2, _train, job.model_dump(mode="json"), what)
    return list(read_events(str(folder / "run")))


def _seconds(records: list[dict[str, Any]], *, before: int) -> float:
    """Of training on rank 0 before a step."""
    return sum(record["data_s"] + record["compute_s"] + record["comm_s"] for record in records
               if record["event"] == "step" and record["rank"] == 0 and record["step"] < before)


@pytest.mark.parametrize("what", ["data", pytest.param("compute", marks=pytest.mark.nightly)])
def test_a_slow_rank_is_named_with_what_it_waits_on_and_so_is_its_recovery(tmp_path: Path, what: str) -> None:
    records = _events(tmp_path, what, num_steps=SLOW_STEPS + 3 * INTERVAL)
    told = [record for record in records if record["event"] == "slow" and record["slow_rank"] == SLOW_RANK]
    assert [(record["cause"], record["over"]) for record in told] == [(what, False), (what, True)]
    begins, ends = (record["step"] for record in told)
    assert begins <= SLOW_STEPS
    assert _seconds(records, before=begins) >= OBSERVED_S
    assert ends > SLOW_STEPS
    facts = read_run(records)
    assert facts is not None
    words = {"data": "waits for its rows", "compute": "computes"}[what]
    assert any(f"rank {SLOW_RANK} on " in text and words in text for text in facts.warnings), facts.warnings


def test_an_even_ring_names_nobody(tmp_path: Path) -> None:
    records = _events(tmp_path, "", num_steps=3 * INTERVAL)
    assert [record for record in records if record["event"] == "slow"] == []
    assert _seconds(records, before=3 * INTERVAL) >= OBSERVED_S  # control: it trained long enough for a report
