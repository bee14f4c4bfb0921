"""How long a dataset takes to write, beside Spark's bare Parquet of the same frame and beside Petastorm's documented way.

    uv run python -m benchmarks.prepare

1 M rows of 33 float columns, an id and a label, cached by Spark. Ours: the files in their final order, Petastorm's metadata, and
the manifest's facts (rows, bytes, hashes) read back from them. All sides take turns in each round; a ratio is the median of
the rounds' ratios. Petastorm's way, a Python row at a time, runs on 50,000 rows and is scaled.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from benchmarks.support.report import print_result
from sparkring.conf.loading import parse_config
from sparkring.conf.schema import SparkConfig
from sparkring.pipelines.data.dataset.row_schema import DataField, TensorSpec
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.etl.encoding.schema_pickle import pickled_unischema
from sparkring.spark_jobs.etl.writing.file_layout import FileLayout
from sparkring.spark_jobs.etl.writing.write_dataset import read_back, split_layouts, write_split
from sparkring.spark_jobs.spark.session import spark_session

ROWS, PETASTORM_ROWS, FILES, ROUNDS = 1_000_000, 50_000, 4, 3
COLUMNS = tuple(f"c{number:02d}" for number in range(33))
FIELDS = (DataField(name="row_id", dtype="int64"), DataField(name="label", dtype="int8"),
          *(DataField(name=name, dtype="float32") for name in COLUMNS))


def _plain(frame: DataFrame, folder: Path, *, shuffled: bool) -> None:
    (frame.repartition(FILES, sf.rand(1)) if shuffled else frame).write.parquet(f"file:{folder}")


def _ours(frame: DataFrame, folder: Path, layout: FileLayout, *, shuffled: bool) -> None:
    store = open_store(str(folder))
    write_split(frame, store, "data/train", fields=FIELDS, layout=layout, seed=1 if shuffled else None)
    split = read_back(store, "data/train", FIELDS)
    assert split.rows == ROWS, f"wrote {split.rows} rows of {ROWS}"


def _petastorm(spark: SparkSession, folder: Path) -> None:
    """As Petastorm's README has it, on rows that are there already."""
    from petastorm.etl.dataset_metadata import materialize_dataset
    from petastorm.etl.legacy import restricted_loads
    from petastorm.unischema import dict_to_spark_row

    schema, url = restricted_loads(pickled_unischema("train", FIELDS)), f"file://{folder}"

    def row(number: int) -> dict[str, Any]:
        return {"row_id": np.int64(number), "label": np.int8(number % 2), **{name: np.float32(number) for name in COLUMNS}}

    with materialize_dataset(spark, url, schema, row_group_size_mb=16):
        rows = spark.sparkContext.parallelize(range(PETASTORM_ROWS), FILES).map(row).map(lambda one: dict_to_spark_row(schema, one))
        spark.createDataFrame(rows, schema.as_spark_schema()).write.mode("overwrite").parquet(url)


def _seconds(work: Callable[[Path], None]) -> float:
    with tempfile.TemporaryDirectory(prefix="sparkring-prepare-") as folder:
        began = time.perf_counter()
        work(Path(folder) / "out")
        return time.perf_counter() - began


def _frame(spark: SparkSession) -> DataFrame:
    """The rows, in memory."""
    numbers = [sf.rand(place).cast("float").alias(name) for place, name in enumerate(COLUMNS)]
    frame = spark.range(ROWS, numPartitions=FILES).select(
        sf.col("id").alias("row_id"), (sf.col("id") % 2).cast("tinyint").alias("label"), *numbers).persist()
    frame.count()
    return frame


def _layout(frame: DataFrame) -> tuple[FileLayout, float]:
    """Where rows go, and the seconds that this takes: prepare counts rows and sees that ids are unique."""
    config = parse_config({"name": "benchmark", "workspace": "unused", "prepare": {
        "sources": {"rows": {"path": "unused", "columns": {"row_id": "bigint"}}}, "query": "SELECT * FROM rows", "label": "label",
        "features": {"numeric": list(COLUMNS)}, "split": {"by": "random"}, "num_files": FILES}}, origin="benchmark").prepare
    tensors = (TensorSpec(name="numeric", dtype="float32", fields=COLUMNS),)
    began = time.perf_counter()
    layouts = split_layouts(frame, config, tensors, split=sf.lit("train"))
    return layouts["train"], time.perf_counter() - began


def main() -> None:
    """Run all sides in turn and print the table and the figures."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = spark_session(SparkConfig(master="local[2]"), app_name="prepare benchmark")
    frame = _frame(spark)
    layout, layout_s = _layout(frame)
    sides: dict[str, Callable[[Path], None]] = {
        "Spark's Parquet": lambda folder: _plain(frame, folder, shuffled=False),
        "sparkring": lambda folder: _ours(frame, folder, layout, shuffled=False),
        "Spark's Parquet, shuffled": lambda folder: _plain(frame, folder, shuffled=True),
        "sparkring, shuffled": lambda folder: _ours(frame, folder, layout, shuffled=True),
        "Petastorm, row by row": lambda folder: _petastorm(spark, folder),
    }
    for work in sides.values():
        _seconds(work)  # the JVM compiles what it runs often
    rounds: list[dict[str, float]] = []
    for number in range(ROUNDS):
        rounds.append({name: _seconds(work) for name, work in sides.items()})
        said = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in rounds[-1].items())
        print(f"round {number + 1} of {ROUNDS}: {said}", flush=True)

    def ratio(side: str, to: str) -> float:
        return statistics.median(one[side] / one[to] for one in rounds)

    scale = ROWS / PETASTORM_ROWS
    seconds = {name: statistics.median(one[name] for one in rounds) * (scale if "Petastorm" in name else 1) for name in sides}
    print_result([{"side": name, "seconds for 1 M rows": f"{value:.2f}"} for name, value in seconds.items()], {
        "rows": ROWS, "columns": len(COLUMNS), "write_s": seconds["sparkring, shuffled"], "layout_s": layout_s,
        "ratio_to_plain_parquet": ratio("sparkring", "Spark's Parquet"),
        "ratio_to_plain_parquet_shuffled": ratio("sparkring, shuffled", "Spark's Parquet, shuffled"),
        "speedup_over_petastorm_rows": scale * ratio("Petastorm, row by row", "sparkring, shuffled")})
    spark.stop()


if __name__ == "__main__":
    main()
