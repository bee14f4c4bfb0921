"""Columns kept as they are, through Spark: Petastorm's reader and our loader give what the source held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from petastorm import make_reader
from pyspark.sql import SparkSession

from sparkring.conf.loading import parse_config
from sparkring.conf.schema import Config
from sparkring.errors import SourceError
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.spark_jobs.prepare import prepare

pytest_plugins = ["tests.support.spark_sessions"]

RAW: list[dict[str, Any]] = [
    {"column": "matrix", "dtype": "float32", "shape": [2, 2]},
    {"column": "steps", "dtype": "uint16", "shape": [None], "pad": 9, "pad_to": 3},
    {"column": "packed", "dtype": "int64", "shape": [None, 2], "codec": "compressed_ndarray", "pad": 0, "pad_to": 2},
    {"column": "level", "dtype": "uint8"},
    {"column": "flag", "dtype": "bool"},
    {"column": "price", "dtype": "float64"}]


def _row(number: int) -> dict[str, Any]:
    """What the source holds."""
    return {"matrix": np.array([[number, 0.5], [1, 2]], np.float32), "steps": np.arange(number % 5, dtype=np.uint16),
            "packed": np.full((number % 3, 2), number), "level": number % 256, "flag": number % 2 == 0, "price": number + 0.25}


def _config(folder: Path, raw: list[dict[str, Any]]) -> Config:
    rows = [_row(number) for number in range(300)]
    pq.write_table(pa.table({
        "id": range(300), "late": [number % 3 == 0 for number in range(300)],
        **{name: [np.asarray(row[name]).ravel().tolist() for row in rows] for name in ("matrix", "steps", "packed")},
        **{name: [row[name] for row in rows] for name in ("level", "flag", "price")}}), folder / "source.parquet")
    columns = {"id": "bigint", "late": "boolean", "matrix": "array<double>", "steps": "array<bigint>", "packed": "array<bigint>",
               "level": "bigint", "flag": "boolean", "price": "double"}
    settings = {"sources": {"source": {"path": str(folder / "source.parquet"), "format": "parquet", "columns": columns}},
                "query": """SELECT id AS row_id, late, matrix, steps, packed, level, flag, CAST(price AS DECIMAL(10, 2)) AS price
                            FROM source""",
                "label": "late", "features": {"raw": raw}, "split": {"by": "random", "validation_share": 0.2, "test_share": 0.2}}
    return parse_config({"name": "arrays", "workspace": str(folder / "workspace"), "prepare": settings}, origin="test")


def test_petastorm_s_reader_and_our_loader_give_what_the_source_held(spark: SparkSession, tmp_path: Path) -> None:
    config = _config(tmp_path, RAW)
    prepare(config, spark=spark)
    dataset, manifest = Dataset(config.dataset), Dataset(config.dataset).manifest()
    with make_reader(f"{dataset.url}/data/{manifest.data_id}/train", reader_pool_type="dummy", num_epochs=1) as reader:
        found = {int(row.row_id): row._asdict() for row in reader}
    assert len(found) == manifest.splits["train"].rows > 100
    for number, row in found.items():
        for name, expected in _row(number).items():
            np.testing.assert_array_equal(row[name], expected)
    assert {name: found[next(iter(found))][name].dtype.name for name in ("matrix", "steps", "packed", "level", "flag", "price")} == {
        "matrix": "float32", "steps": "uint16", "packed": "int64", "level": "uint8", "flag": "bool", "price": "float64"}
    loader = Loader(SplitReader(dataset.store, manifest, "train"), LoaderConfig(batch_rows=64, seed=1, lanes=3), rank=0, num_ranks=1)
    seen = 0
    for batch in loader.epoch(0):
        for place, number in enumerate(batch.tensors["row_id"].tolist()):
            expected = _row(number)
            padded = np.pad(expected["steps"], (0, 5), constant_values=9)[:3]
            np.testing.assert_array_equal(batch.tensors["matrix"][place], expected["matrix"])
            np.testing.assert_array_equal(batch.tensors["steps"][place].numpy(), padded)
            np.testing.assert_array_equal(batch.tensors["packed"][place], np.pad(expected["packed"], ((0, 3), (0, 0)))[:2])
            assert [batch.tensors[name][place].item() for name in ("level", "flag", "price")] == [
                expected["level"], expected["flag"], expected["price"]]
            seen += 1
    assert seen == manifest.splits["train"].rows


@pytest.mark.parametrize(("raw", "message"), [
    pytest.param({"column": "level", "dtype": "int8"}, "prepare.query fails: .*128", id="a number that the type cannot hold"),
    pytest.param({"column": "steps", "dtype": "int16", "shape": [2]}, r"an array of \d numbers, its shape is \[2\]", id="another length"),
    pytest.param({"column": "matrix", "dtype": "float32"}, "column matrix of the query is array<double>, but .* must be double",
                 id="an array for a number"),
])
def test_what_does_not_fit_stops_the_job_and_leaves_nothing(spark: SparkSession, tmp_path: Path, raw: dict[str, Any], message: str) -> None:
    config = _config(tmp_path, [raw])
    with pytest.raises(SourceError, match=message):
        prepare(config, spark=spark)
    assert Dataset(config.dataset).versions() == []
