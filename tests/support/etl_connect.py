"""Prepare, hold rows against expectations, score and evaluate over Spark Connect.

A program of its own, since a process has either a Connect session or a classic one.

    python -m tests.support.etl_connect FOLDER

Prints one line of JSON about what it made.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from sparkring.conf.schema import SparkConfig
from sparkring.errors import ExpectationsNotMet
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.evaluate import evaluate
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.score import predict, score
from sparkring.spark_jobs.spark.session import spark_session
from tests.support.etl_tables import etl_config, save_untrained

EXPECTED: dict[str, Any] = {"min_rows": 892, "columns": {
    "km": {"max_null_share": 0.01, "min": 2, "max": 99, "max_mean_shift": 0.25, "max_psi": 0.1}, "late": {"unique": True},
    "city": {"allowed": ["Bern", "Cork", "Rome"]}, "row_id": {"unique": True}}}
"""Some of it is met, some is not."""


def findings(folder: Path, spark: SparkSession) -> list[list[Any]]:
    """What is found of rows that are not as expected, after a version that they may drift from."""
    prepare(etl_config(folder), spark=spark)
    try:
        prepare(etl_config(folder, expectations=EXPECTED), spark=spark)
    except ExpectationsNotMet as error:
        return [list(result) for result in error.results]
    return []


def main(folder: Path) -> None:
    """Do everything with one session."""
    config = etl_config(folder)
    spark = spark_session(SparkConfig(remote="local[2]"), app_name="etl over connect")
    made = prepare(config, spark=spark)
    save_untrained(config)
    scored = score(config, spark=spark)
    evaluation = evaluate(config, spark=spark)
    trips = spark.read.csv(str(folder / "trips.csv"), header=True, nullValue="NA")
    trips = trips.selectExpr("DOUBLE(km)", "DOUBLE(km) * km AS km2", "city")
    new = [score(config, spark=spark, input=str(folder / "trips.csv")).rows, predict(trips, config).where("probability < 2").count()]
    probabilities = pq.read_table(Path(scored.url.removeprefix("file://"))).sort_by("row_id")["probability"].to_pylist()
    found = {"session": type(spark).__module__, "rows": made.rows, "content_id": Dataset(config.dataset).manifest().content_id,
             "probabilities": probabilities, "auc": evaluation["logistic_regression"]["auc"],
             "new_rows": new, "findings": findings(folder / "expected", spark)}
    sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
