"""A bucket that answers 503 to everything for a while: checkpoints are missed and rows are waited for, and that is all."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pyarrow.parquet as pq
import pytest

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.errors import StorageError
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.data.stores.retry import retry
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument, Position
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.checkpoints.writer import CheckpointWriter
from sparkring.pipelines.training.events.writer import read_events
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.train_rank import train_rank
from sparkring.spark_jobs.stored.audit import audit
from tests.support import seams
from tests.support.s3_server import s3_server
from tests.support.training import await_condition, before_each_step, begin_checkpoints_on_the_dot, train_config

FILES = ([150, 150], [70], [301], [100])
RUN = "s3://bucket/run"

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A server with one bucket, which this process's environment leads to."""
    monkeypatch.setattr(seams.S3_ATTEMPTS, 2)  # the client's own retries, which take seconds
    with s3_server(tmp_path, flaw="away") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="bucket")
        yield environment


@contextmanager
def away_for(folder: Path, *, requests: int) -> Iterator[None]:
    """Have the server refuse so many requests, or a few more."""
    (folder / "away").touch()

    def come_back() -> None:
        await_condition(lambda: len((folder / "refused").read_text().splitlines()) >= requests if (folder / "refused").exists() else False,
                        "requests that are refused")
        (folder / "away").unlink()

    thread = threading.Thread(target=come_back, daemon=True)
    thread.start()
    yield
    thread.join(10)
    assert not thread.is_alive()


def _train(context: RankContext, job: dict[str, Any], environment: dict[str, str], folder: str, away: tuple[int, int]) -> Any:
    """Train; the server is away from before one step until before another, and what was begun before either has ended then."""
    os.environ.update(environment)
    seams.replace(seams.S3_ATTEMPTS, 2)
    begin_checkpoints_on_the_dot()

    def act(done: int, writers: Sequence[CheckpointWriter]) -> None:
        if context.rank == 0 and done in away:
            writers[-1].finish()
            (Path(folder, "away").touch if done == away[0] else Path(folder, "away").unlink)()

    before_each_step(act)
    return train_rank(context, job)


@pytest.mark.parametrize(("away", "committed"), [((-1, -1), [4, 8, 12, 13]), ((6, 11), [4, 12, 13])],
                         ids=["the control: it answers", "it is away for five steps"])
def test_a_bucket_that_is_away_for_a_while_costs_a_checkpoint_and_a_warning(
        tmp_path: Path, served: dict[str, str], away: tuple[int, int], committed: list[int]) -> None:
    write_dataset(tmp_path / "dataset", FILES)
    config = train_config(tmp_path, model={"hidden": [16]}, train={
        "epochs": 1, "batch_rows": 64, "checkpoint_steps": 4, "num_ranks": 2, "keep_checkpoints": 10})
    job = TrainJob(config=config, dataset_url=str(tmp_path / "dataset"), dataset_version=1, run_url=RUN, generation=0, lanes=24)
    summary = run_on_ranks(2, _train, job.model_dump(mode="json"), served, str(tmp_path), away)[0]
    assert Checkpoints(RUN).numbers() == committed
    warned = [record for record in read_events(RUN) if record["event"] == "warning"]
    assert [(record["count"], record["text"].partition(",")[0]) for record in warned] == (
        [] if away[0] < 0 else [(1, "the checkpoint after 8 steps was not written")])
    assert summary["failed_checkpoints"] == len(warned)
    assert audit(RUN).epochs == 1  # no line of the events was lost
    assert (tmp_path / "refused").exists() is (away[0] >= 0)


def test_the_latest_checkpoint_is_waited_for_and_not_taken_for_damaged(tmp_path: Path, served: dict[str, str]) -> None:
    checkpoints = Checkpoints(RUN)
    for steps in (1, 2):
        part = checkpoints.put_part(f"state {steps}".encode(), steps=steps, rank=0)
        checkpoints.commit(CheckpointDocument(position=Position(steps_done=steps), content_id="c", dataset_version=1, seed=1, lanes=24,
                                              batch_rows=8, code_version="test", parts=(part,)))
    with away_for(tmp_path, requests=5):
        found, damaged = retry(checkpoints.latest)
    assert found is not None
    assert (tuple(found.state), damaged) == ((b"state 2",), [])
    (tmp_path / "away").touch()
    with pytest.raises(StorageError, match="503"):  # the control: asked once, it says that it is away
        checkpoints.latest()


def test_rows_are_waited_for(tmp_path: Path, served: dict[str, str]) -> None:
    local, dataset = write_dataset(tmp_path / "dataset", FILES, validation_rows=30), Dataset("s3://bucket/dataset")
    for entry in local.store.tree(""):
        if not entry.is_folder:
            dataset.store.upload(Path(local.store.path(entry.name)), entry.name)
    manifest = dataset.manifest()
    reader = SplitReader(dataset.store, manifest, "train")
    loader = Loader(reader, LoaderConfig(batch_rows=64, seed=3, lanes=24), rank=0, num_ranks=1)
    with away_for(tmp_path, requests=12):
        assert sum(batch.rows for batch in loader.epoch(0)) == sum(map(sum, FILES))
    (tmp_path / "away").touch()
    with pytest.raises(OSError, match=r"AWS Error|503|SLOW_DOWN"):  # the control: what Arrow says of it
        pq.read_table(dataset.store.open_input(manifest.splits["train"].files[0].path))
