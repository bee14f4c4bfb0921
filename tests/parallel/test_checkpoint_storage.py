"""Storage that fails while ranks train: training goes on, the checkpoint before stays, the next one is tried, and the end is the same."""

from __future__ import annotations

import json
import resource
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.errors import CommitConflict
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument, CheckpointPart
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.checkpoints.writer import CheckpointWriter, Saved
from sparkring.pipelines.training.events.writer import read_events
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.loop.saver import Saver
from sparkring.pipelines.training.strategies.step import train_step
from sparkring.pipelines.training.train_rank import train_rank
from sparkring.spark_jobs.reporting.facts.run_reader import read_run
from sparkring.spark_jobs.stored.audit import audit
from tests.support import seams
from tests.support.training import (
    await_condition,
    before_each_step,
    begin_checkpoints_on_the_dot,
    largest_difference,
    train_config,
    weights_of_run,
)

FILES = ([150, 150], [70], [301], [100])
BATCH, STEPS, EPOCHS = 64, 13, 2
FULL_BYTES = 64
"""No file may grow beyond this while the disk is full: no part of a state, no line of events."""


def _train(context: RankContext, job: dict[str, Any], full: tuple[int, int], ranks: tuple[int, ...]) -> dict[str, Any] | None:
    """Train; on these ranks the disk is full from before one step until before another. Each checkpoint ends before the next step.

    The kernel refuses what no longer fits.
    """
    begin_checkpoints_on_the_dot()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def act(done: int, writers: Sequence[CheckpointWriter]) -> None:
        for writer in writers:
            writer.finish()  # one that is not due before the last has ended is postponed
        if done in full and context.rank in ranks:
            resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES if done == full[0] else before[0], before[1]))

    before_each_step(act)
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
    # Due after 4, 8, 12, 13 (an epoch's end), 17, 21, 25, 26 steps; full during steps 7 to 17.
    summary = _run(tmp_path, (6, 17), ranks)
    run = str(tmp_path / "run")
    warned = [record for record in read_events(run) if record["event"] == "warning"]
    assert [record["count"] for record in warned] == list(range(1, len(warned) + 1))
    assert summary["failed_checkpoints"] == len(warned) == 4
    assert all("was not written, the one before stays" in record["text"] and "File too large" in record["text"] for record in warned)
    written = [record["name"] for record in read_events(run) if record["event"] == "checkpoint"]
    assert written == [f"checkpoints/{steps}-0.json" for steps in (4, 21, 25, 26)]
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
    assert (latest.document.position.steps_done, damaged) == (17, [])


def _train_slowly_stored(context: RankContext, job: dict[str, Any], patience_s: float) -> tuple[list[int], bool]:
    """Train; rank 1's part of the first checkpoint is not stored until 10 steps are done, or for a while.

    Returns:
        The steps that were done when each checkpoint was begun, and whether training came to its tenth step meanwhile.
    """
    seams.replace(seams.SAVER_PATIENCE_S, patience_s)
    done, begun, come = 0, [], threading.Event()
    waited: list[bool] = []
    put_part, begin = Checkpoints.put_part, CheckpointWriter.begin

    def step(*args: Any, **settings: Any) -> Any:
        nonlocal done
        done += 1
        if done == 11:
            come.set()
        return train_step(*args, **settings)

    def slowly(self: Checkpoints, *args: Any, **settings: Any) -> CheckpointPart:
        if context.rank == 1 and not waited:
            waited.append(come.wait(3.0))
        return put_part(self, *args, **settings)

    def noted(self: CheckpointWriter, *args: Any, **named: Any) -> None:
        begun.append(done)
        begin(self, *args, **named)

    seams.replace(seams.STRATEGY_TRAIN_STEP, step)
    seams.replace(seams.CHECKPOINTS_PUT_PART, slowly)
    seams.replace(seams.CHECKPOINT_WRITER_BEGIN, noted)
    train_rank(context, job)
    return begun, bool(waited and waited[0])


@pytest.mark.parametrize("patient", [False, True], ids=["it is put off", "the control: ranks that wait for it stand still"])
def test_a_checkpoint_that_is_due_while_the_one_before_takes_long_keeps_nobody_waiting(tmp_path: Path, *, patient: bool) -> None:
    write_dataset(tmp_path / "dataset", FILES)
    config = train_config(tmp_path, model={"hidden": [4]}, train={
        "epochs": 1, "batch_rows": 32, "checkpoint_steps": 4, "num_ranks": 2, "keep_checkpoints": 10})
    job = TrainJob(config=config, dataset_url=str(tmp_path / "dataset"), dataset_version=1, run_url=str(tmp_path / "run"), generation=0,
                   lanes=24)
    (begun, _), (same, came) = run_on_ranks(2, _train_slowly_stored, job.model_dump(mode="json"), 1000.0 if patient else 0.0)
    assert begun == same  # both ranks, after the same steps
    assert came is not patient
    assert begun[0] == 2  # half an interval early, as nothing is known of the first one
    assert patient or begun[1] > 10
    assert Checkpoints(job.run_url).numbers() == begun


TAKES = 5
"""Steps that go by while a part is stored."""


class SlowStorage:
    """Storage that takes as long as so many steps, not one more and not one less, and what a failure would have cost."""

    def __init__(self) -> None:
        self.worst = self._done = self._committed = 0
        self._rush = False
        """Nobody trains on: the last checkpoint is waited for."""
        self._ending = False
        """The steps are over, and what is left is to take none."""
        self._news = threading.Condition()

    def step(self, *args: Any, **settings: Any) -> Any:
        """Done, and told."""
        with self._news:
            assert self._news.wait_for(lambda: not self._ending, timeout=20.0)
        result = train_step(*args, **settings)
        with self._news:
            self._done += 1
            self.worst = max(self.worst, self._done - self._committed)
            self._news.notify_all()
        return result

    def before(self) -> None:
        """Take that long."""
        with self._news:
            until = self._done + TAKES
            assert self._news.wait_for(lambda: self._rush or self._done >= until, timeout=20.0)
            self._ending = True

    def committed(self, steps: int) -> None:
        """A checkpoint is there."""
        with self._news:
            self._committed = steps

    def write(self, write: Callable[..., Saved], *args: Any) -> Saved:
        """A checkpoint, from its beginning to its end."""
        saved = write(*args)
        with self._news:
            self._ending = False
            self._news.notify_all()
        return saved

    def wait(self, wait: Callable[[Saver], None], waiting: Saver) -> None:
        """Training stands still meanwhile."""
        with self._news:
            self._rush = True
            self._news.notify_all()
        wait(waiting)
        self._rush = False


def _train_beside_slow_storage(context: RankContext, job: dict[str, Any], on_the_dot: bool) -> int:
    """Train; the most steps that rank 0 ever had done beyond the last commit."""
    if on_the_dot:
        seams.replace(seams.PACE_LEAD, lambda *_: 0)
        seams.replace(seams.SAVER_PATIENCE_S, 0.0)
    storage, put_part, commit = SlowStorage(), Checkpoints.put_part, Checkpoints.commit
    write, wait = CheckpointWriter._write, Saver.wait

    def slowly(self: Checkpoints, *args: Any, **settings: Any) -> CheckpointPart:
        storage.before()
        return put_part(self, *args, **settings)

    def noted(self: Checkpoints, document: CheckpointDocument) -> str:
        name = commit(self, document)
        storage.committed(document.position.steps_done)
        return name

    def waited(self: Saver) -> None:
        storage.wait(wait, self)

    def written(*args: Any) -> Saved:
        return storage.write(write, *args)

    if context.rank == 0:
        seams.replace(seams.STRATEGY_TRAIN_STEP, storage.step)
        seams.replace(seams.CHECKPOINTS_PUT_PART, slowly)
        seams.replace(seams.CHECKPOINTS_COMMIT, noted)
        seams.replace(seams.SAVER_WAIT, waited)
        seams.replace(seams.CHECKPOINT_WRITER_WRITE, written)
    train_rank(context, job)
    return storage.worst


@pytest.mark.parametrize("on_the_dot", [False, True], ids=["it is begun early", "the control: begun when the steps are up"])
def test_a_failure_at_any_step_costs_no_more_than_checkpoint_steps(tmp_path: Path, *, on_the_dot: bool) -> None:
    write_dataset(tmp_path / "dataset", FILES)
    config = train_config(tmp_path, model={"hidden": [4]}, train={
        "epochs": 1, "batch_rows": 4, "checkpoint_steps": 40, "num_ranks": 2, "precision": "float64"})
    job = TrainJob(config=config, dataset_url=str(tmp_path / "dataset"), dataset_version=1, run_url=str(tmp_path / "run"), generation=0,
                   lanes=24)
    worst = run_on_ranks(2, _train_beside_slow_storage, job.model_dump(mode="json"), on_the_dot)[0]
    assert (worst <= 40) is not on_the_dot
    assert audit(job.run_url).epochs == 1


def _train_until_overtaken(context: RankContext, job: dict[str, Any], gone_on: str) -> str:
    """Train, but hang in the second commit until the file is there; what came of that commit then."""
    begin_checkpoints_on_the_dot()
    commit, note, said = Checkpoints.commit, Saver.after, "it was committed"

    class Over(Exception):
        pass

    def hanging(self: Checkpoints, document: CheckpointDocument) -> str:
        nonlocal said
        if not self.numbers():
            return commit(self, document)
        await_condition(Path(gone_on).exists, "the next generation")
        try:
            return commit(self, document)
        except CommitConflict as error:
            said = str(error)
            raise

    def after(self: Saver, steps_done: int) -> None:
        if steps_done < 8:
            note(self, steps_done)
        else:
            self._writer.finish()
            raise Over

    seams.replace(seams.CHECKPOINTS_COMMIT, hanging)
    seams.replace(seams.SAVER_AFTER, after)
    with suppress(Over):
        train_rank(context, job)
    return said


def test_a_ring_that_hung_in_an_upload_commits_nothing_once_the_next_one_has_gone_on(tmp_path: Path) -> None:
    write_dataset(tmp_path / "dataset", FILES)
    config = train_config(tmp_path, model={"hidden": [4]}, train={
        "epochs": 1, "batch_rows": 64, "checkpoint_steps": 4, "num_ranks": 1, "keep_checkpoints": 10})
    first, second = (TrainJob(config=config, dataset_url=str(tmp_path / "dataset"), dataset_version=1, run_url=str(tmp_path / "run"),
                              generation=generation, lanes=24) for generation in (0, 1))
    gone_on, checkpoints = tmp_path / "gone on", Checkpoints(first.run_url)
    with ThreadPoolExecutor(1) as beside:
        hanging = beside.submit(run_on_ranks, 1, _train_until_overtaken, first.model_dump(mode="json"), str(gone_on))
        await_condition(checkpoints.numbers, "the first checkpoint")
        run_on_ranks(1, _train, second.model_dump(mode="json"), (-1, -1), ())
        expected = [(number, checkpoints.document(number).generation) for number in checkpoints.numbers()]
        gone_on.touch()
        (said,) = hanging.result()
    assert said.startswith("generation 0 is over: generation 1 of the run has begun")
    assert [(number, checkpoints.document(number).generation) for number in checkpoints.numbers()] == expected
    assert expected == [(4, 0), (8, 1), (12, 1), (13, 1)]
    assert audit(first.run_url).epochs == 1


def _train_until_another_takes_over(context: RankContext, job: dict[str, Any]) -> None:
    """Train; before the seventh step the next generation begins."""
    begin_checkpoints_on_the_dot()

    def act(done: int, _: Sequence[CheckpointWriter]) -> None:
        if done == 6:
            Checkpoints(job["run_url"]).fence(1, steps=4)

    before_each_step(act)
    train_rank(context, job)


def test_a_ring_whose_run_another_generation_has_taken_over_ends_at_its_next_checkpoint(tmp_path: Path) -> None:
    write_dataset(tmp_path / "dataset", FILES)
    config = train_config(tmp_path, model={"hidden": [4]}, train={
        "epochs": EPOCHS, "batch_rows": BATCH, "checkpoint_steps": 4, "num_ranks": 1})
    job = TrainJob(config=config, dataset_url=str(tmp_path / "dataset"), dataset_version=1, run_url=str(tmp_path / "run"), generation=0,
                   lanes=24)
    with pytest.raises(AssertionError, match=r"Superseded: generation 0 is over: generation 1 of the run has begun"):
        run_on_ranks(1, _train_until_another_takes_over, job.model_dump(mode="json"))
    records = list(read_events(job.run_url))
    assert sum(record["event"] == "step" for record in records) in range(8, 13), "of 26: one is due after 8, and the next waits for it"
    assert [record["name"] for record in records if record["event"] == "checkpoint"] == ["checkpoints/4-0.json"]
