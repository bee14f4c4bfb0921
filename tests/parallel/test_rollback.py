"""``on_nonfinite: rollback``: all ranks go back to the last checkpoint in the same step, and the proof of the rows stays whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.events.writer import Record, read_events
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.strategies.step import train_step
from sparkring.pipelines.training.train_rank import train_rank
from sparkring.spark_jobs.reporting.facts.run_reader import read_run
from sparkring.spark_jobs.stored.audit import audit
from tests.support import seams
from tests.support.training import begin_checkpoints_on_the_dot, largest_difference, train_config, weights_of_run

FILES = ([150, 150], [70], [301], [100])
ROWS, BATCH, STEPS, EPOCHS = 771, 64, 13, 2
SPOILED = 7
"""The step before which memory goes bad, where a test wants that."""


def _train(context: RankContext, job: dict[str, Any], times: int) -> dict[str, Any] | None:
    """Train; ``times`` times, before the step that follows so many others, all weights become huge, as of an update that went wrong."""
    begin_checkpoints_on_the_dot()
    calls = 0

    def step(model: torch.nn.Module, *args: Any, **settings: Any) -> Any:
        nonlocal calls, times
        calls += 1
        if times and calls == SPOILED:
            times, calls = times - 1, 4  # back at the checkpoint after 5 steps, it comes again in the third step from there
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(1e200)
        return train_step(model, *args, **settings)

    seams.replace(seams.STRATEGY_TRAIN_STEP, step)
    return train_rank(context, job)


def _run(folder: Path, policy: str, *, times: int = 0, nan_row: int | None = None, **train: Any) -> list[Record]:
    write_dataset(folder / "dataset", FILES, nan_row=nan_row)
    config = train_config(folder, model={"hidden": [8]}, train={
        "epochs": EPOCHS, "batch_rows": BATCH, "checkpoint_steps": 5, "num_ranks": 2, "precision": "float64", "on_nonfinite": policy,
        **train})
    job = TrainJob(config=config, dataset_url=str(folder / "dataset"), dataset_version=1, run_url=str(folder / "run"), generation=0,
                   lanes=24)
    summary = run_on_ranks(2, _train, job.model_dump(mode="json"), times)[0]
    (folder / "run/result.json").write_text(json.dumps(summary))
    return list(read_events(str(folder / "run")))


def _of(records: list[Record], kind: str, *, rank: int = 0) -> list[Record]:
    return [record for record in records if (record["event"], record["rank"]) == (kind, rank)]


def test_a_batch_that_is_not_finite_is_left_out_after_going_back_and_every_row_is_proved_read(tmp_path: Path) -> None:
    records = _run(tmp_path / "rollback", "rollback", nan_row=400)
    back = _of(records, "rollback")
    assert [(record["epoch"], record["generation"]) for record in back] == [(0, 0), (1, 1)]
    assert [(record["step"], record["steps_done"]) for record in back] == [
        (record["step"], record["steps_done"]) for record in _of(records, "rollback", rank=1)]  # both ranks, in the same step
    left_out = [(record["generation"], record["epoch"], record["step"]) for record in _of(records, "step") if record.get("left_out")]
    assert left_out == [(number + 1, record["epoch"], record["step"]) for number, record in enumerate(back)]
    starts = [(record["generation"], record["epoch"] * STEPS + record["step"]) for record in _of(records, "start")]
    assert starts == [(0, 0), (1, back[0]["steps_done"]), (2, back[1]["steps_done"])]
    proved = audit(str(tmp_path / "rollback/run"))
    assert (proved.finished, proved.epochs, proved.rows) == (True, EPOCHS, ROWS)
    assert [part.generation for part in proved.parts] == [0, 1, 2]
    facts = read_run(iter(records))
    assert facts is not None
    assert sum("back to the checkpoint after" in text for text in facts.warnings) == 2
    assert all(epoch.train_loss < 2 for epoch in facts.epochs)
    # The control: where only the rows are at fault, leaving the step out is all that skipping does, and steps done again come out alike.
    _run(tmp_path / "skip", "skip", nan_row=400)
    assert largest_difference(weights_of_run(tmp_path / "rollback"), weights_of_run(tmp_path / "skip")) == 0.0


def test_weights_that_went_bad_are_made_good_by_going_back_and_not_by_skipping(tmp_path: Path) -> None:
    records = _run(tmp_path / "rollback", "rollback", times=1)
    assert [(record["step"], record["steps_done"]) for record in _of(records, "rollback")] == [(SPOILED - 1, 5)]
    losses = [record["loss"] for record in _of(records, "step") if record["generation"] == 1 and not record.get("left_out")]
    assert all(loss is not None and loss < 2 for loss in losses)
    assert audit(str(tmp_path / "rollback/run")).epochs == EPOCHS
    skipped = _run(tmp_path / "skip", "skip", times=1)  # the control
    assert [record["loss"] for record in _of(skipped, "step")][SPOILED:] == [None] * (EPOCHS * STEPS - SPOILED)


def test_all_steps_since_the_checkpoint_are_left_out_the_second_time_and_then_the_run_gives_up(tmp_path: Path) -> None:
    records = _run(tmp_path / "twice", "rollback", times=2)
    texts = [record["text"] for record in _of(records, "rollback")]
    assert [text.partition("leaving out ")[2] for text in texts] == [
        "step 6 of the run (1 of 3 times)", "steps 5 to 8 of the run (2 of 3 times)"]
    assert audit(str(tmp_path / "twice/run")).epochs == EPOCHS
    with pytest.raises(AssertionError, match=r"NotFinite: step .*train\.recovery\.rollbacks=1 is used up"):
        _run(tmp_path / "once", "rollback", times=2, recovery={"rollbacks": 1})


def test_before_the_first_checkpoint_there_is_the_beginning_to_go_back_to(tmp_path: Path) -> None:
    records = _run(tmp_path, "rollback", nan_row=400, checkpoint_steps=1000, optimizer={"name": "adam"})
    assert [record["steps_done"] for record in _of(records, "rollback")] == [0, STEPS]
    assert audit(str(tmp_path / "run")).epochs == EPOCHS
