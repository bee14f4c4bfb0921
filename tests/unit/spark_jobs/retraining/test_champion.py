"""A dataset version on which no candidate can be compared or evaluated: refused in one sentence, and no night for good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.datasets import write_dataset
from harness.parquet_files import write_parquet
from sparkring.conf.schema import Config
from sparkring.errors import DatasetError
from sparkring.pipelines.data.dataset.manifest import DataFile
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.registry.registry import Registry
from sparkring.spark_jobs.retrain import retrain
from sparkring.spark_jobs.retraining.history import History
from tests.support import seams
from tests.support.etl_tables import etl_config, save_untrained
from tests.support.retraining_samples import ended_of

ROWS = 60


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A workspace whose champion was trained on version 1; version 2 was prepared whole, without the column ``age``."""
    config = etl_config(tmp_path, []).changed(run=None, retrain={"prepare": False})
    dataset = write_dataset(Path(config.dataset), [[ROWS]], test_rows=20)
    _promote(config, "first")
    before = dataset.manifest()
    train = before.splits["train"]
    write_parquet(pq.read_table(Path(config.dataset) / train.files[0].path).drop(["age"]), Path(config.dataset) / "new.parquet")
    new = DataFile(path="new.parquet", bytes=1, sha256="0" * 64, row_groups=(ROWS,), row_group_bytes=(1,))
    encoded = before.preprocessing.model_copy(update={"numeric": before.preprocessing.numeric[:2]})
    splits = before.splits | {"train": train.model_copy(update={"files": (*train.files, new), "rows": 2 * ROWS})}
    dataset.commit(before.model_copy(update={"version": 2, "preprocessing": encoded, "splits": splits}))
    return config


def _promote(config: Config, run: str) -> None:
    """Make a champion of a network that was trained on the latest version."""
    card, registry = save_untrained(config.changed(run=run)), Registry(config.workspace)
    version = registry.register({
        "name": card.name, "task": card.task, "run": run, "dataset_url": card.dataset_url, "dataset_version": card.dataset_version,
        "content_id": card.content_id, "weights_sha256": run, "files": (), "split": "test", "rows": 20, "metrics": {}, "intervals": {},
        "code_version": "test"})
    registry.promote(version.version, reason="test")


@pytest.mark.parametrize("trigger", [{"new_rows": 1}, {"new_rows": None, "max_psi": 0.1}], ids=["new rows", "drift"])
def test_a_version_that_the_champion_cannot_read_is_refused_before_a_retraining_begins(config: Config, trigger: dict[str, Any]) -> None:
    history = History(config.workspace)
    history.end(ended_of(history.begin(dataset_version=1, rows=ROWS, champion=None, reasons=("first",)), promoted=True))
    with pytest.raises(DatasetError, match=r"the champion, model version 1, cannot be compared with a candidate: version 2 of .* was "
                                           r"encoded with other figures than version 1.*; run `sparkring train`.* on version 2\.$"):
        retrain(config, trigger=trigger)
    assert (len(history.begun()), history.unfinished()) == (1, None)


def test_one_that_cannot_end_is_given_up_and_a_new_champion_is_gone_on_from(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(config.workspace)
    history.begin(dataset_version=2, rows=ROWS, champion=1, reasons=("begun before the check",))
    with pytest.raises(DatasetError, match="cannot be compared"):
        retrain(config)
    assert (history.unfinished(), history.begun()) == (None, [])
    assert "other figures than version 1" in (Path(config.workspace) / "retrain" / "given_up" / "1.json").read_text(encoding="utf-8")

    _promote(config, "second")
    monkeypatch.setattr(seams.RETRAIN_TRAIN, _reached)
    with pytest.raises(_Reached):
        retrain(config)
    unfinished = history.unfinished()
    assert unfinished is not None
    assert (unfinished.number, unfinished.champion, unfinished.dataset_version) == (2, 2, Dataset(config.dataset).manifest().version)


@pytest.mark.parametrize("split", ["test", "validation"])
def test_held_out_rows_of_one_label_are_refused_before_a_candidate_is_trained_and_no_night_for_good(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str) -> None:
    monkeypatch.setattr(seams.RETRAIN_TRAIN, _reached)
    config = etl_config(tmp_path, []).changed(run=None, retrain={"prepare": False})
    history, rows = History(config.workspace), {"validation": 100, "test": 100} | {split: 1}
    write_dataset(Path(config.dataset), [[ROWS]], validation_rows=rows["validation"], test_rows=rows["test"])
    with pytest.raises(DatasetError, match=rf"all 1 rows of the {split} split of version 1 of .* have label \d, so every model would"):
        retrain(config)
    assert history.begun() == []

    history.begin(dataset_version=1, rows=ROWS, champion=None, reasons=("begun before the check",))
    with pytest.raises(DatasetError, match=f"all 1 rows of the {split} split"):
        retrain(config)
    assert (history.unfinished(), history.begun()) == (None, [])


class _Reached(Exception):
    """The candidate would be trained."""


def _reached(*_: Any, **__: Any) -> None:
    raise _Reached
