"""Storage that fails while ranks train: training goes on, the checkpoint before stays, the next one is tried, and the end is the same."""

from __future__ import annotations

import json
import resource
import threading
from pathlib import Path
from typing import Any

import pytest

from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training import checkpoint_writer, trainee
from sparkring.pipelines.training.checkpoint import Checkpoints, Part
from sparkring.pipelines.training.checkpoint_writer import CheckpointWriter
from sparkring.pipelines.training.events import read_events
from sparkring.pipelines.training.job import TrainJob
from sparkring.pipelines.training.loop import train_rank
from sparkring.pipelines.training.step import train_step
from sparkring.spark_jobs.audit import audit
from sparkring.spark_jobs.reporting.run_reader import read_run
from tests.support.datasets import write_dataset
from tests.support.ranks import run_on_ranks
from tests.support.training import largest_difference, train_config, weights_of_run

FILES = ([150, 150], [70], [301], [100])
BATCH, STEPS, EPOCHS = 64, 13, 2
FULL_BYTES = 64
"""No file may grow beyond this while the disk is full: no part of a state, no line of events."""


def _train(context: RankContext, job: dict[str, Any], full: tuple[int, int], ranks: tuple[int, ...]) -> dict[str, Any] | None:
    """Train; on these ranks the disk is full from before one step until before another, and what was begun before then has ended.

    The kernel refuses what no longer fits.
    """
    done, writers = 0, list[CheckpointWriter]()
    before, begin = resource.getrlimit(resource.RLIMIT_FSIZE), CheckpointWriter.begin

    def step(*args: Any, **settings: Any) -> Any:
        nonlocal done
        if done in full:
            writers[-1].finish()
            if context.rank in ranks:
                resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES if done == full[0] else before[0], before[1]))
        done += 1
        return train_step(*args, **settings)

    def noted(self: CheckpointWriter, *args: Any) -> None:
        writers.append(self)
        begin(self, *args)

    trainee.train_step = step  # type: ignore[attr-defined]
    CheckpointWriter.begin = noted  # type: ignore[method-assign,assignment]
    return train_rank(context, job)


def _run(folder: Path, full: tuple[int, int], ranks: tuple[int, ...] = (0, 1)) -> dict[str, Any]:
    write_dataset(folder / "dataset", FILES)
    config = train_config(folder, model={"hidden": [16]}, train={
        "epochs": EPOCHS, "batch_rows": BATCH, "checkpoint_steps": 4, "num_ranks": 2, "precision": "float64", "keep_checkpoints": 2})
    job = TrainJob(config=config, dataset_url=str(folder / "dataset"), dataset_version=1, run_url=str(folder / "run"), generation=0,
                   lanes=24)
    summary: dict[str, Any] = run_on_ranks(2, _train, job.model_dump(mode="json"), full, ranks)[0]
    (folder / "run/result.json").write_text(json.dumps(summary))
    return summary


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The control: with room all the time, nothing is told."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert _run(folder, (-1, -1))["failed_checkpoints"] == 0
    assert not [record for record in read_events(str(folder / "run")) if record["event"] == "warning"]
    return folder


@pytest.mark.parametrize("ranks", [(0,), (1,), (0, 1)], ids=["of rank 0", "of rank 1", "of both"])
def test_a_disk_that_is_full_for_a_while_costs_checkpoints_and_nothing_else(
        tmp_path: Path, undisturbed: Path, ranks: tuple[int, ...]) -> None:
    # Due after 4, 8, 12, 13 (an epoch's end), 16, 20, 24, 26 steps; full during steps 7 to 17.
    summary = _run(tmp_path, (6, 17), ranks)
    run = str(tmp_path / "run")
    warned = [record for record in read_events(run) if record["event"] == "warning"]
    assert [record["count"] for record in warned] == list(range(1, len(warned) + 1))
    assert summary["failed_checkpoints"] == len(warned) == 4
    assert all("was not written, the one before stays" in record["text"] and "File too large" in record["text"] for record in warned)
    written = [record["name"] for record in read_events(run) if record["event"] == "checkpoint"]
    assert written == [f"checkpoints/{steps}.json" for steps in (4, 20, 24, 26)]
    facts = read_run(read_events(run))
    assert facts is not None
    assert any(text.startswith("4 checkpoints could not be written") for text in facts.warnings)
    assert audit(run).epochs == EPOCHS  # no line of the events was lost either
    assert largest_difference(weights_of_run(tmp_path), weights_of_run(undisturbed)) == 0.0
    kept = Checkpoints(run)
    named = {part.name for number in kept.numbers() for part in kept.document(number).parts}
    assert {path.name for path in (tmp_path / "run/checkpoints/data").iterdir()} == named  # nothing half written is left


def test_a_run_whose_last_checkpoint_cannot_be_written_ends_with_an_error_and_its_last_good_one(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"StorageError: the last checkpoint could not be written .* in 3 tries: .*File too large"):
        _run(tmp_path, (17, -1))
    latest, damaged = Checkpoints(str(tmp_path / "run")).latest()
    assert latest is not None
    assert (latest.document.position.steps_done, damaged) == (16, [])


def _train_slowly_stored(context: RankContext, job: dict[str, Any], patience_s: float) -> tuple[list[int], bool]:
    """Train; rank 1's part of the first checkpoint is not stored until 10 steps are done, or for a while.

    Returns:
        The steps that were done when each checkpoint was begun, and whether training came to its tenth step meanwhile.
    """
    checkpoint_writer.PATIENCE_S = patience_s
    done, begun, come = 0, [], threading.Event()
    waited: list[bool] = []
    put_part, begin = Checkpoints.put_part, CheckpointWriter.begin

    def step(*args: Any, **settings: Any) -> Any:
        nonlocal done
        done += 1
        if done == 11:
            come.set()
        return train_step(*args, **settings)

    def slowly(self: Checkpoints, *args: Any, **settings: Any) -> Part:
        if context.rank == 1 and not waited:
            waited.append(come.wait(3.0))
        return put_part(self, *args, **settings)

    def noted(self: CheckpointWriter, *args: Any) -> None:
        begun.append(done)
        begin(self, *args)

    trainee.train_step = step  # type: ignore[attr-defined]
    Checkpoints.put_part = slowly  # type: ignore[method-assign]
    CheckpointWriter.begin = noted  # type: ignore[method-assign,assignment]
    train_rank(context, job)
    return begun, bool(waited and waited[0])


@pytest.mark.parametrize("patient", [False, True], ids=["it is put off", "the control: ranks that wait for it stand still"])
def test_a_checkpoint_that_is_due_while_the_one_before_is_still_written_keeps_nobody_waiting(tmp_path: Path, *, patient: bool) -> None:
    write_dataset(tmp_path / "dataset", FILES)
    config = train_config(tmp_path, model={"hidden": [4]}, train={
        "epochs": 1, "batch_rows": 32, "checkpoint_steps": 4, "num_ranks": 2, "keep_checkpoints": 10})
    job = TrainJob(config=config, dataset_url=str(tmp_path / "dataset"), dataset_version=1, run_url=str(tmp_path / "run"), generation=0,
                   lanes=24)
    (begun, _), (same, came) = run_on_ranks(2, _train_slowly_stored, job.model_dump(mode="json"), 1000.0 if patient else 0.0)
    assert begun == same  # both ranks, after the same steps
    assert came is not patient
    if patient:
        assert begun[:3] == [4, 8, 12]
    else:
        assert begun[0] == 4
        assert begun[1] > 10
    assert Checkpoints(job.run_url).numbers() == begun
