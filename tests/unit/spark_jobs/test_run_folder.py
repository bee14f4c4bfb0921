"""A run folder that cannot be written to is told in one line, before Spark or a rank is started."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.datasets import write_dataset
from sparkring.conf.loading import parse_config
from sparkring.errors import SparkringError
from sparkring.pipelines.training.job.job import TrainSummary
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.run.folder import RunFolder
from sparkring.spark_jobs.train import train
from tests.support import seams
from tests.support.configs import MINIMAL
from tests.support.training import train_config

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that any user may look into; pytest's own are for their owner alone."""
    made = Path(tempfile.mkdtemp(prefix="sparkring-run-"))
    made.chmod(0o755)
    write_dataset(made / "dataset", ([300, 300],))
    yield made
    shutil.rmtree(made)


@contextmanager
def unprivileged() -> Iterator[None]:
    """As a user whom the permissions of files bind."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("closed", [".", "events", "checkpoints/data"])
def test_a_run_folder_that_cannot_be_written_is_told_before_a_rank_is_started(
        folder: Path, monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    began = list[str]()

    def run(*_: object, **__: object) -> TrainSummary:
        began.append("a ring")
        return TrainSummary(steps=1, resumed_at=0)

    monkeypatch.setattr(seams.SPARK_RING_RUN, run)
    config = train_config(folder / "workspace", dataset_url=str(folder / "dataset"), train={"epochs": 1})
    place = folder / "workspace/runs/first"
    for kept in ("events", "checkpoints/data"):
        (place / kept).mkdir(parents=True)
    paths = [folder / "workspace", *(folder / "workspace").rglob("*")]
    for path in paths:
        os.chown(path, NOBODY if os.geteuid() == 0 else -1, -1)
    with unprivileged():
        assert train(config).steps == 1  # the control: so far it can
        (place / "result.json").unlink()
        began.clear()
        (place / closed).chmod(0o555)
        try:
            with pytest.raises(SparkringError, match=r"cannot be written: Permission denied; the run folder .* set another work") as caught:
                train(config)
        finally:
            (place / closed).chmod(0o755)
    assert began == []
    assert str(place) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["closed", "closed/dataset"])
def test_a_dataset_folder_that_cannot_be_written_is_told_before_data_is_read(
        folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(seams.PREPARE_LOCATED, lambda *_: pytest.fail("a source was looked for"))
    (folder / name).mkdir(parents=True)
    for path in (folder / "closed", folder / name):
        os.chown(path, NOBODY if os.geteuid() == 0 else -1, -1)
    (folder / name).chmod(0o555)
    config = parse_config({**MINIMAL, "workspace": str(folder / "closed")}, origin="test")
    with unprivileged(), pytest.raises(SparkringError, match=r"Permission denied; .*set (another )?workspace") as caught:
        prepare(config)
    assert "\n" not in str(caught.value)


def test_no_two_drivers_take_the_same_generation() -> None:
    url = f"memory://{uuid.uuid4().hex}/run"  # a store that takes a document which equals its own for its own: an answer may be lost
    assert [RunFolder(url).claim_generation() for _ in range(3)] == [0, 1, 2]
