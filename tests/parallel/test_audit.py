"""The audit of real runs: whole ones, and one that was killed twice and went on with other numbers of ranks; and of forgeries."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.errors import DocumentDamaged, ReceiptError
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.order.receipts import seal
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.events.writer import read_events
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.loop.saver import Saver
from sparkring.pipelines.training.strategies.step import train_step
from sparkring.pipelines.training.train_rank import train_rank
from sparkring.spark_jobs.stored.audit import AuditResult, GenerationSpan, audit
from tests.support import seams
from tests.support.training import begin_checkpoints_on_the_dot, train_config

FILES = ([150, 150], [70], [301], [0, 6], [1], [129, 100], [100])
ROWS = 1007
BATCH, STEPS = 64, 16
"""Rows of a step, but for the last one of an epoch, which has 47; and steps of an epoch."""
EPOCHS = 3
CHECKPOINT_STEPS = 5
TAMPERINGS = 120

Lines = list[str]

pytestmark = pytest.mark.parallel


def _train(context: RankContext, job: dict[str, Any], die_after: int | None) -> dict[str, Any] | None:
    """Train; rank 0 ends its process, as if killed, once ``die_after`` steps are done and the checkpoints due by then are written."""
    begin_checkpoints_on_the_dot()
    checkpoints, done = Checkpoints(job["run_url"]), 0
    begun_at = max(checkpoints.numbers(), default=0)

    def step(*args: Any, **settings: Any) -> Any:
        nonlocal done
        if die_after is not None and context.rank == 0 and done == die_after:
            due = _last_due(begun_at, begun_at + done)
            until = time.monotonic() + 20
            while due not in checkpoints.numbers():
                assert time.monotonic() < until, f"no checkpoint after {due} steps"
                time.sleep(0.01)
            os._exit(1)
        done += 1
        return train_step(*args, **settings)

    seams.replace(seams.STRATEGY_TRAIN_STEP, step)
    return train_rank(context, job)


def _last_due(begun_at: int, done: int) -> int:
    """The last checkpoint that is due up to ``done`` steps, in a ring that began after ``begun_at``."""
    last = begun_at
    for steps in range(begun_at + 1, done + 1):
        if steps - last == CHECKPOINT_STEPS or steps % STEPS == 0:
            last = steps
    return last


def _generation(folder: Path, generation: int, *, num_ranks: int, die_after: int | None = None) -> None:
    config = train_config(folder, model={"hidden": [4]}, train={
        "epochs": EPOCHS, "batch_rows": BATCH, "seed": 5, "checkpoint_steps": CHECKPOINT_STEPS, "num_ranks": num_ranks})
    job = TrainJob(config=config, dataset_url=str(folder / "dataset"), dataset_version=1, run_url=str(folder / "run"),
                   generation=generation, lanes=24)
    if die_after is None:
        summary = run_on_ranks(num_ranks, _train, job.model_dump(mode="json"), None)[0]
        (folder / "run/result.json").write_text(json.dumps(summary))  # as spark_jobs/train.py does
    else:
        with pytest.raises(AssertionError, match=r"rank 0 (died without a word|has ended)"):  # of it, or of one that waits for it
            run_on_ranks(num_ranks, _train, job.model_dump(mode="json"), die_after)


def _train_and_talk(context: RankContext, job: dict[str, Any]) -> dict[str, Any] | None:
    """Train; rank 0 writes another record after every step's, as where a checkpoint is done then."""
    after = Saver.after

    def talk(self: Saver, steps_done: int) -> None:
        after(self, steps_done)
        self._events.write("warning", text="beside the steps")

    seams.replace(seams.SAVER_AFTER, talk)
    return train_rank(context, job)


def test_what_is_told_between_the_last_step_and_the_checkpoint_leaves_the_proof_whole(tmp_path: Path) -> None:
    write_dataset(tmp_path / "dataset", FILES)
    config = train_config(tmp_path, model={"hidden": [4]}, train={"epochs": 1, "batch_rows": BATCH, "num_ranks": 1})
    job = TrainJob(config=config, dataset_url=str(tmp_path / "dataset"), dataset_version=1, run_url=str(tmp_path / "run"), generation=0,
                   lanes=24)
    summary = run_on_ranks(1, _train_and_talk, job.model_dump(mode="json"))[0]
    (tmp_path / "run/result.json").write_text(json.dumps(summary))
    told = [record["event"] for record in read_events(str(tmp_path / "run"))]
    assert told[told.index("epoch") - 1] == "warning"
    assert audit(str(tmp_path / "run")).rows == ROWS


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Killed on 2 ranks after 23 steps, on 3 after 2 more than its checkpoint (which led nowhere), ended on 5."""
    folder = tmp_path_factory.mktemp("killed")
    write_dataset(folder / "dataset", FILES)
    _generation(folder, 0, num_ranks=2, die_after=23)
    _generation(folder, 1, num_ranks=3, die_after=2)
    unfinished = folder / "unfinished"
    shutil.copytree(folder / "run", unfinished)
    _generation(folder, 2, num_ranks=3, die_after=9)
    _generation(folder, 3, num_ranks=5)
    return folder


def _copy(folder: Path, to: Path) -> Path:
    shutil.copytree(folder / "run", to)
    return to


def test_a_run_that_was_killed_and_went_on_with_other_ranks_is_proved_exact(killed: Path) -> None:
    result = audit(str(killed / "run"))
    manifest = Dataset(str(killed / "dataset")).manifest()
    assert (result.finished, result.epochs, result.rows, result.rows_begun) == (True, EPOCHS, ROWS, 0)
    assert (result.dataset_version, result.content_id) == (1, manifest.content_id)
    assert result.rows_digest == manifest.splits["train"].rows_digest
    assert result.parts == (GenerationSpan(0, 2, (0, 0), (1, 5)), GenerationSpan(2, 3, (1, 5), (1, 10)),
                            GenerationSpan(3, 5, (1, 10), (3, 0)))
    # Of 23 steps on 2 ranks 21 count; of those on 3 ranks none of the first ring's 2 and 5 of the second one's 9.
    done = {0: 2 * 23, 1: 3 * 2, 2: 3 * 9}
    counted = {0: 2 * 21, 1: 0, 2: 3 * 5}
    slack = 3 + 2  # ranks that were ahead of rank 0 when it died may have written one more
    assert 0 <= result.repeated - (sum(done.values()) - sum(counted.values())) <= slack


def test_an_unfinished_run_is_proved_up_to_its_latest_checkpoint(killed: Path) -> None:
    result = audit(str(killed / "unfinished"))
    assert (result.finished, result.epochs, result.rows_begun) == (False, 1, 5 * BATCH)
    assert result.parts == (GenerationSpan(0, 2, (0, 0), (1, 5)),)


def test_a_dataset_that_moved_is_taken_from_where_it_is_and_another_is_refused(killed: Path, tmp_path: Path) -> None:
    shutil.copytree(killed / "dataset", tmp_path / "moved")
    moved: AuditResult = audit(str(killed / "run"), dataset_url=str(tmp_path / "moved"))
    assert moved.epochs == EPOCHS
    write_dataset(tmp_path / "other", FILES, seed=1)
    with pytest.raises(ReceiptError, match="has a manifest with SHA-256"):
        audit(str(killed / "run"), dataset_url=str(tmp_path / "other"))


def _counted(folder: Path) -> list[str]:
    """Event files whose records lead to the end."""
    return [f"{generation}-{rank}.jsonl" for generation, ranks in ((0, 2), (2, 3), (3, 5)) for rank in range(ranks)]


def _edit(lines: Lines, place: int, chance: random.Random) -> None:
    record = json.loads(lines[place])
    key = chance.choice([key for key in record if key != "chain"])
    value = record[key]
    record[key] = value + 1 if isinstance(value, int | float) else [*value, 0] if isinstance(value, list) else f"{value}0"
    lines[place] = json.dumps(record, separators=(",", ":"))


def _drop(lines: Lines, place: int, chance: random.Random) -> None:
    del lines[place]


def _swap(lines: Lines, place: int, chance: random.Random) -> None:
    lines[place], lines[place + 1] = lines[place + 1], lines[place]


def _duplicate(lines: Lines, place: int, chance: random.Random) -> None:
    lines.insert(place, lines[place])


def _cut_off(lines: Lines, place: int, chance: random.Random) -> None:
    del lines[min(place, _last_counted(lines)):]


def _last_counted(lines: Lines) -> int:
    steps = [number for number, line in enumerate(lines) if '"event":"step"' in line]
    return steps[0] + 1  # every generation here counts more than its first step


TAMPERS: tuple[Callable[[Lines, int, random.Random], None], ...] = (_edit, _drop, _swap, _duplicate, _cut_off)


def test_every_edited_dropped_swapped_or_repeated_record_is_caught_and_named(killed: Path, tmp_path: Path) -> None:
    run = _copy(killed, tmp_path / "run")
    for seed in range(TAMPERINGS):
        chance = random.Random(seed)
        tamper = TAMPERS[seed % len(TAMPERS)]
        path = run / "events" / chance.choice(_counted(killed))
        before = path.read_bytes()
        lines = before.decode().splitlines()
        tamper(lines, chance.randrange(len(lines) - 2), chance)
        path.write_text("".join(f"{line}\n" for line in lines))
        with pytest.raises(ReceiptError) as caught:
            audit(str(run))
        named = path.name if tamper is not _cut_off else "event files are gone, cut short or exchanged"
        assert named in str(caught.value), (seed, tamper)
        path.write_bytes(before)
    assert audit(str(run)).epochs == EPOCHS  # the control: nothing but the tampering was refused


def test_a_forger_who_makes_all_hashes_of_a_file_right_again_is_caught_by_what_went_on_from_it(killed: Path, tmp_path: Path) -> None:
    run = _copy(killed, tmp_path / "run")
    for name in _counted(killed):
        path = run / "events" / name
        before = path.read_bytes()
        head, forged = "", []
        for number, line in enumerate(before.decode().splitlines()):
            record = json.loads(line)
            del record["chain"]
            record["time"] += number == 1
            sealed, head = seal(json.dumps(record, separators=(",", ":")), head)
            forged.append(f"{sealed}\n")
        path.write_text("".join(forged))
        with pytest.raises(ReceiptError, match="gone, cut short or exchanged"):
            audit(str(run))
        path.write_bytes(before)


def test_missing_files_an_edited_result_and_an_edited_manifest_are_refused(killed: Path, tmp_path: Path) -> None:
    run = _copy(killed, tmp_path / "run")
    shutil.move(run / "events/2-1.jsonl", tmp_path / "kept")
    with pytest.raises(ReceiptError, match="event files are gone"):
        audit(str(run))
    shutil.move(tmp_path / "kept", run / "events/2-1.jsonl")
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | {"receipts": "0" * 32}))
    with pytest.raises(ReceiptError, match=r"result\.json ends in receipts 0000"):
        audit(str(run))
    for damaged, found in (("", "no JSON"), ("[]", "a JSON list"), ('{"steps": 3}', "resumed_at: Field required")):
        (run / "result.json").write_text(damaged)
        with pytest.raises(DocumentDamaged, match=rf"result\.json is damaged: found {found}.*; bring it back .*, or delete it"):
            audit(str(run))
    (run / "result.json").unlink()
    assert not audit(str(run)).finished  # as the remedy says: proved up to the latest checkpoint
    (run / "result.json").write_text(json.dumps(result))
    shutil.copytree(killed / "dataset", tmp_path / "dataset")
    manifest = tmp_path / "dataset/versions/1.json"
    manifest.write_text(manifest.read_text() + " ")
    with pytest.raises(ReceiptError, match="has a manifest with SHA-256"):
        audit(str(run), dataset_url=str(tmp_path / "dataset"))
    path = run / "events/0-0.jsonl"
    sealed = path.read_text().splitlines()
    path.write_text("".join(f"{line[:line.rindex(',')]}}}\n" for line in sealed))
    with pytest.raises(ReceiptError, match=r"0-0\.jsonl line 1 has no hash"):
        audit(str(run))
    path.write_text(seal('{"nothing":"of ours"}', "")[0] + "\n")
    with pytest.raises(ReceiptError, match="holds a record that this release cannot read"):
        audit(str(run))
    with pytest.raises(ReceiptError, match="holds no events"):
        audit(str(tmp_path / "nowhere"))
