"""Appending: the child holds its parent's rows and the new ones, each once; nothing of the parent changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from sparkring.conf.schema import Config, SourceConfig
from sparkring.errors import CommitConflict, ConfigError
from sparkring.pipelines.data.dataset.integrity import verify_files
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.data.order.rowhash import rows_digest, to_hex
from sparkring.spark_jobs.etl.sources.tables import OpenTable
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.spark.progress import SilentProgress
from tests.support import seams
from tests.support.etl_tables import COLUMNS, START, Trip, etl_config, trips, write_trips

pytest_plugins = ["tests.support.spark_sessions"]

ALL = trips()
FIRST = [trip for trip in ALL if trip.id % 3]


def _with(config: Config, **changes: object) -> Config:
    return config.model_copy(update={"prepare": config.prepare.model_copy(update=changes)})


def _ids(dataset: Dataset, manifest: Manifest, split: str) -> list[int]:
    loader = Loader(SplitReader(dataset.store, manifest, split), LoaderConfig(batch_rows=64, seed=1, lanes=24), rank=0, num_ranks=1)
    return sorted(int(row) for batch in loader.epoch(0) for row in batch.tensors["row_id"])


@pytest.fixture
def config(spark: SparkSession, tmp_path: Path) -> Config:
    """A dataset of two thirds of the trips; the source then grows to all of them."""
    made = etl_config(tmp_path, FIRST)
    prepare(made, spark=spark)
    (source,) = made.prepare.sources.values()
    assert isinstance(source, SourceConfig)
    write_trips(Path(source.path), ALL)
    return made


def test_the_child_holds_each_row_of_its_parent_and_each_new_one_once(spark: SparkSession, config: Config) -> None:
    dataset = Dataset(config.dataset)
    before = dataset.manifest(1)
    result = prepare(config, append=True, spark=spark)
    child = dataset.manifest()
    assert (result.version, result.reused, child.parent, child.preprocessing) == (2, False, 1, before.preprocessing)
    for split in ("train", "validation", "test"):
        old, new = before.splits[split], child.splits[split]
        assert new.files[:len(old.files)] == old.files
        ids = _ids(dataset, child, split)
        assert set(ids) > set(_ids(dataset, before, split))
        assert (len(ids), to_hex(rows_digest(np.array(ids)))) == (new.rows, new.rows_digest)
    everything = [row for split in child.splits for row in _ids(dataset, child, split)]
    assert sorted(everything) == [trip.id * 10 for trip in ALL if trip.late is not None]
    assert dataset.manifest(1) == before
    for version in (1, 2):
        assert list(verify_files(dataset.store, dataset.manifest(version))) == []


def test_a_source_without_new_rows_makes_no_version(spark: SparkSession, config: Config) -> None:
    prepare(config, append=True, spark=spark)
    again = prepare(config, append=True, spark=spark)
    assert (again.version, again.reused, again.changed_rows) == (2, True, 0)
    assert Dataset(config.dataset).versions() == [1, 2]


def test_a_source_that_has_not_changed_is_not_checked_again(
        spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    towns = tmp_path / "towns.csv"
    towns.write_text("town,size\nBern,1\nCork,2\n")
    source = {"path": str(tmp_path / "trips.csv"), "null_value": "NA", "columns": COLUMNS}
    config = etl_config(tmp_path, FIRST, sources={
        "trips": source, "towns": {"path": str(towns), "columns": {"town": "string", "size": "int"}}})
    checked, check = list[str](), OpenTable.count_checked

    def noted(table: OpenTable) -> int:
        checked.append(table.source.name)
        return check(table)

    monkeypatch.setattr(seams.PREPARE_COUNT_CHECKED, noted)
    prepare(config, spark=spark)
    assert sorted(checked) == ["towns", "trips"]
    checked.clear()
    write_trips(tmp_path / "trips.csv", ALL)
    prepare(config, append=True, spark=spark)
    assert checked == ["trips"]
    checked.clear()
    towns.write_text("town,size\nBern,1\nCork,2\nRome,3\n")  # the control
    write_trips(tmp_path / "trips.csv", [*ALL, replace(ALL[-1], id=5_000)])
    prepare(config, append=True, spark=spark)
    assert sorted(checked) == ["towns", "trips"]
    dataset = Dataset(config.dataset)
    assert [dataset.manifest(version).source["towns"]["rows"] for version in (1, 2, 3)] == [2, 2, 3]


class _Notes(SilentProgress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_known_rows_of_other_contents_are_counted_and_kept(spark: SparkSession, config: Config) -> None:
    changes: list[Callable[[Trip], Trip]] = [  # of different numbers of rows, so that the sum tells which are noticed
        *[lambda trip: replace(trip, late=None)] * 1, *[lambda trip: replace(trip, late=1 - (trip.late or 0))] * 2,
        *[lambda trip: replace(trip, km=(trip.km or 0) + 0.5)] * 4,
        *[lambda trip: replace(trip, city="Cork" if trip.city == "Bern" else "Bern")] * 8,
        *[lambda trip: replace(trip, day=START)] * 16]
    known = [trip.id for trip in FIRST if trip.late is not None][-len(changes):]
    change = dict(zip(known, changes, strict=True))
    (source,) = config.prepare.sources.values()
    assert isinstance(source, SourceConfig)
    write_trips(Path(source.path), [change[trip.id](trip) if trip.id in change else trip for trip in FIRST])
    before, notes = Dataset(config.dataset).manifest(), _Notes()
    result = prepare(config, append=True, spark=spark, progress=notes)
    assert (result.version, result.reused, result.changed_rows) == (1, True, 31)
    assert notes.notes[0] == ("prepare: 31 rows of known ids have other contents; they are kept as they are in version 1; "
                              "prepare without --append to take them")
    assert Dataset(config.dataset).manifest() == before


def test_rows_of_another_kind_are_refused(spark: SparkSession, config: Config) -> None:
    fewer = config.prepare.features.model_copy(update={"numeric": config.prepare.features.numeric[:1]})
    with pytest.raises(ConfigError, match=r"another prepare\.features than this config's.*; set it as it was then"):
        prepare(_with(config, features=fewer), append=True, spark=spark)
    assert Dataset(config.dataset).versions() == [1]


def test_a_version_that_another_writer_commits_meanwhile_is_a_conflict_not_lost(
        spark: SparkSession, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Dataset(config.dataset)
    folder = Path(config.dataset) / "data"
    before = set(folder.iterdir())

    def expect(*_: object, **__: object) -> None:  # any point between the beginning and the commit
        dataset.commit(dataset.manifest(1).model_copy(update={"version": 2, "parent": 1, "created_at": "meanwhile"}))

    monkeypatch.setattr(seams.PREPARE_CHECK_EXPECTATIONS, expect)
    with pytest.raises(CommitConflict):
        prepare(config, append=True, spark=spark)
    assert dataset.versions() == [1, 2]
    assert dataset.manifest().created_at == "meanwhile"
    assert set(folder.iterdir()) == before


def test_there_must_be_something_to_append_to(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no version to append to"):
        prepare(etl_config(tmp_path, FIRST), append=True, spark=spark)
