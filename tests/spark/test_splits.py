"""Splits: decided by the row alone, groups together, shares as asked, and computable without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash
from pydantic import TypeAdapter
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkring.conf.schema import PrepareConfig, SplitConfig
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.etl.columns.splits import split_name
from sparkring.spark_jobs.prepare import prepare
from tests.support.etl_tables import etl_config, trips

pytest_plugins = ["tests.support.spark_sessions"]

ROWS, KEYS = 20_000, 2_000


def _config(folder: Path, **split: Any) -> PrepareConfig:
    config = etl_config(folder).prepare
    return config.model_copy(update={"split": TypeAdapter(SplitConfig).validate_python(split)})


def _hash(key: object, seed: int) -> int:
    """As the docstring of splits.py has it, by the xxhash library."""
    return xxhash.xxh64_intdigest(str(key).encode(), xxhash.xxh64_intdigest(seed.to_bytes(8, "little", signed=True), 42))


def _share_split(key: object, seed: int, *, validation: float, test: float) -> str:
    place = (_hash(key, seed) >> 11) / 2**53
    return "test" if place < test else "validation" if place < test + validation else "train"


def _fold_split(key: object, seed: int, *, folds: int, fold: int) -> str:
    signed = (_hash(key, seed) ^ 1 << 63) - (1 << 63)
    return {fold: "test", (fold + 1) % folds: "validation"}.get(signed % folds, "train")


def _rows(spark: SparkSession) -> DataFrame:
    return spark.range(ROWS).select((sf.col("id") - 50).alias("row_id"), sf.concat(sf.lit("kund\u00e9 "), sf.col("id") % KEYS).alias("who"))


def _splits(frame: DataFrame, config: PrepareConfig) -> dict[int, tuple[str, str]]:
    """Row id -> (key, split)."""
    return {row[0]: (row[1], row[2]) for row in frame.select("row_id", "who", split_name(config)).collect()}


@pytest.mark.parametrize(("split", "expected"), [
    pytest.param({"by": "hash", "column": "who", "validation_share": 0.2, "test_share": 0.1, "seed": 3},
                 lambda _, who: _share_split(who, 3, validation=0.2, test=0.1), id="hash"),
    pytest.param({"by": "random", "validation_share": 0.05, "test_share": 0.3, "seed": -9},
                 lambda row_id, _: _share_split(row_id, -9, validation=0.05, test=0.3), id="random"),
    pytest.param({"by": "fold", "column": "who", "folds": 7, "fold": 6}, lambda _, who: _fold_split(who, 1, folds=7, fold=6), id="fold"),
])
def test_the_split_of_a_key_is_what_any_xxh64_library_says(
        spark: SparkSession, tmp_path: Path, split: dict[str, Any], expected: Callable[[int, str], str]) -> None:
    found = _splits(_rows(spark), _config(tmp_path, **split))
    assert len(found) == ROWS
    assert {row_id: (who, expected(row_id, who)) for row_id, (who, _) in found.items()} == found


@pytest.mark.parametrize(("by", "spread"), [  # standard deviations of a binomial: sqrt(2,000 x 0.1 x 0.9) keys are 0.67% of them
    pytest.param({"by": "hash", "column": "who"}, 0.02, id="hash of 2,000 keys"), pytest.param({"by": "random"}, 0.007, id="random")])
def test_shares_are_near_what_was_asked(spark: SparkSession, tmp_path: Path, by: dict[str, str], spread: float) -> None:
    counts = Counter(name for _, name in _splits(_rows(spark), _config(tmp_path, **by, validation_share=0.1, test_share=0.2)).values())
    assert {name: count / ROWS for name, count in counts.items()} == {
        "train": pytest.approx(0.7, abs=spread), "validation": pytest.approx(0.1, abs=spread), "test": pytest.approx(0.2, abs=spread)}


def test_rows_of_one_key_stay_together_and_single_rows_do_not(spark: SparkSession, tmp_path: Path) -> None:
    together = set(_splits(_rows(spark), _config(tmp_path, by="hash", column="who")).values())
    assert len(together) == KEYS  # one split a key
    assert len(set(_splits(_rows(spark), _config(tmp_path, by="random")).values())) > KEYS  # the control


def test_over_all_folds_each_key_tests_once_and_validates_once(spark: SparkSession, tmp_path: Path) -> None:
    frame = _rows(spark).limit(KEYS)
    rounds = [_splits(frame, _config(tmp_path, by="fold", column="who", folds=4, fold=fold)) for fold in range(4)]
    for row_id in rounds[0]:
        assert Counter(found[row_id][1] for found in rounds) == {"test": 1, "validation": 1, "train": 2}
    assert min(Counter(name for _, name in rounds[0].values()).values()) > KEYS / 5


def test_another_seed_deals_anew(spark: SparkSession, tmp_path: Path) -> None:
    one, two = (_splits(_rows(spark), _config(tmp_path, by="random", seed=seed, test_share=0.3)) for seed in (1, 2))
    both = sum(one[row_id][1] == two[row_id][1] == "test" for row_id in one)
    assert both / ROWS == pytest.approx(0.09, abs=0.01)


def test_files_and_partitions_have_no_say(spark: SparkSession, tmp_path: Path) -> None:
    config = _config(tmp_path, by="hash", column="who")
    _rows(spark).repartition(7, sf.rand(4)).write.parquet(str(tmp_path / "seven"))
    _rows(spark).coalesce(1).orderBy(sf.desc("row_id")).write.orc(str(tmp_path / "one"))
    expected = _splits(_rows(spark), config)
    assert _splits(spark.read.parquet(str(tmp_path / "seven")), config) == expected
    assert _splits(spark.read.orc(str(tmp_path / "one")), config) == expected


def test_a_column_can_say_it(spark: SparkSession, tmp_path: Path) -> None:
    choices = sf.array(*map(sf.lit, ("train", "test", "none")))
    named = _rows(spark).withColumn("who", choices[sf.abs("row_id") % 3])
    assert set(_splits(named, _config(tmp_path, by="column", column="who")).values()) == {
        ("train", "train"), ("test", "test"), ("none", None)}


def test_a_prepared_version_is_split_as_asked(spark: SparkSession, tmp_path: Path) -> None:
    config = etl_config(tmp_path, split={"by": "random", "validation_share": 0.2, "test_share": 0.3, "seed": 5})
    result = prepare(config, spark=spark)
    assert result.rows == Counter(
        _share_split(trip.id * 10, 5, validation=0.2, test=0.3) for trip in trips() if trip.late is not None)
    assert Dataset(config.dataset).manifest().recipe["split"] == {"by": "random", "validation_share": 0.2, "test_share": 0.3, "seed": 5}
