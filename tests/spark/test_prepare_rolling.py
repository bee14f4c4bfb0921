"""A split by ages: with each append, rows reach training as they age, and each row stays in exactly one split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sparkring.conf.schema import Config, TimeSplit
from sparkring.errors import SourceError
from sparkring.pipelines.data.dataset.integrity import verify_files
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.spark_jobs.prepare import prepare
from tests.support.etl_tables import START, Trip, etl_config, trips, write_trips

pytest_plugins = ["tests.support.spark_sessions"]

LABELLED = [trip for trip in trips() if trip.late is not None]
SPLIT = {"column": "day", "validation": "10d", "test": "1w"}
NIGHTS = (range(50), range(50, 62), range(62, 90))
"""The days whose trips are there in each night; the source holds no others."""


def _of_days(days: Iterable[int]) -> list[Trip]:
    wanted = set(days)
    return [trip for trip in trips() if (trip.day - START).days in wanted]


def _rows(dataset: Dataset, manifest: Manifest) -> dict[str, dict[int, tuple[float, ...]]]:
    """Split -> row id -> the row's encoded numbers and label."""
    found: dict[str, dict[int, tuple[float, ...]]] = {}
    for split in manifest.splits:
        loader = Loader(SplitReader(dataset.store, manifest, split), LoaderConfig(batch_rows=64, seed=1, lanes=24), rank=0, num_ranks=1)
        batches = [batch.tensors for batch in loader.epoch(0)]
        ids = [int(each) for batch in batches for each in batch["row_id"]]
        assert len(ids) == len(set(ids))
        found[split] = dict(zip(ids, [(*map(float, numbers), float(label)) for batch in batches
                                      for numbers, label in zip(batch["numeric"], batch["label"], strict=True)], strict=True))
    return found


def _expected(read: Sequence[Trip]) -> dict[str, set[int]]:
    newest = max(trip.day for trip in read)
    test_from = newest - timedelta(weeks=1)
    validation_from = test_from - timedelta(days=10)
    return {"train": {trip.id * 10 for trip in read if trip.day < validation_from},
            "validation": {trip.id * 10 for trip in read if validation_from <= trip.day < test_from},
            "test": {trip.id * 10 for trip in read if trip.day >= test_from}}


def _with_source(config: Config, rows: Iterable[Trip]) -> Config:
    (source,) = config.prepare.sources.values()
    write_trips(Path(source.path), rows)  # type: ignore[union-attr]
    return config


def test_rows_reach_training_as_they_age_and_each_is_in_one_split(spark: SparkSession, tmp_path: Path) -> None:
    config = etl_config(tmp_path, _of_days(NIGHTS[0]), split=SPLIT)
    dataset, read, before = Dataset(config.dataset), list[Trip](), dict[str, dict[int, tuple[float, ...]]]()
    for number, night in enumerate(NIGHTS, start=1):
        prepare(_with_source(config, _of_days(night)), append=number > 1, spark=spark)
        read += [trip for trip in _of_days(night) if trip.late is not None]
        manifest = dataset.manifest()
        assert manifest.version == number
        rows = _rows(dataset, manifest)
        assert {split: set(of) for split, of in rows.items()} == _expected(read)
        if before:
            parent = dataset.manifest(number - 1)
            assert set(rows["train"]) > set(before["train"])
            assert set(rows["train"]) & set(before["test"])  # with fixed moments no row of test ever trains
            assert manifest.splits["train"].files[:len(parent.splits["train"].files)] == parent.splits["train"].files
            everything = {row: values for of in rows.values() for row, values in of.items()}
            assert all(everything[row] == values for of in before.values() for row, values in of.items())
        assert list(verify_files(dataset.store, manifest)) == []
        before = rows
    assert manifest.rolling is not None
    assert manifest.rolling.newest == max(trip.day for trip in LABELLED)
    assert manifest.rolling.test_from == manifest.rolling.newest - timedelta(weeks=1)


@pytest.mark.nightly
def test_late_rows_fall_by_the_borders_of_today(spark: SparkSession, tmp_path: Path) -> None:
    late = [trip for trip in _of_days(range(50)) if trip.id % 3 == 0]
    config = etl_config(tmp_path, [trip for trip in _of_days(range(50)) if trip.id % 3], split=SPLIT)
    prepare(config, spark=spark)
    before = Dataset(config.dataset).manifest().rolling
    prepare(_with_source(config, late), append=True, spark=spark)
    manifest = Dataset(config.dataset).manifest()
    assert before is not None
    assert manifest.rolling is not None
    assert manifest.rolling.newest in (before.newest, max(trip.day for trip in late))
    rows = {split: set(of) for split, of in _rows(Dataset(config.dataset), manifest).items()}
    assert rows == _expected([trip for trip in _of_days(range(50)) if trip.late is not None])


@pytest.mark.nightly
def test_known_rows_have_not_changed_because_they_fall_elsewhere(spark: SparkSession, tmp_path: Path) -> None:
    config = etl_config(tmp_path, _of_days(range(50)), split=SPLIT)
    prepare(config, spark=spark)
    assert prepare(_with_source(config, _of_days(range(62))), append=True, spark=spark).changed_rows == 0


def test_ages_that_leave_nothing_to_validate_on_commit_nothing(spark: SparkSession, tmp_path: Path) -> None:
    config = etl_config(tmp_path, _of_days(range(50)), split=SPLIT)
    prepare(config, spark=spark)
    with pytest.raises(SourceError, match=r"the validation split is empty: the newest row is of 2020-03-.* set longer ages"):
        prepare(_with_source(config, _of_days([85])), append=True, spark=spark)
    assert Dataset(config.dataset).versions() == [1]


@pytest.mark.parametrize(("split", "found"), [
    ({"validation": "10d"}, "found validation"), ({}, "found neither"),
    ({"validation": "10d", "test": "1w", "test_from": datetime(2020, 3, 1, tzinfo=UTC)}, "found test_from, validation, test")])
def test_half_a_split_by_time_is_refused(split: dict[str, object], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        TimeSplit.model_validate({"column": "day", **split})
