"""A dataset that another program wrote as plain columns of numbers: adopted, it trains, evaluates and scores with the shipped network."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pyspark.sql import SparkSession

from tests.support.command_line import said
from tests.support.training import train_config

pytest_plugins = ["tests.support.spark_sessions"]

ROWS = {"train": 400, "validation": 90, "test": 80}


def _write(folder: Path) -> None:
    first = 0
    for name, rows in ROWS.items():
        ids = np.arange(first, first + rows)
        km = np.random.default_rng(first).uniform(-1, 1, rows)
        (folder / name).mkdir(parents=True)
        pq.write_table(pa.table({"id": ids, "late": (km > 0).astype(np.int8), "km": km, "seats": (ids % 7).astype(np.int16)}),
                       folder / name / "part-0.parquet", row_group_size=50)
        first += rows


def test_plain_numbers_are_adopted_train_are_proved_evaluated_and_scored(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    _write(data)
    said("adopt", str(data), "--row-id", "id", "--label", "late", *(f"--split={name}={name}" for name in ROWS))
    config = train_config(tmp_path / "work", dataset_url=str(data), model={"hidden": [8]}, train={
        "num_ranks": 2, "epochs": 2, "batch_rows": 20, "optimizer": {"lr": 0.05}})
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
    assert "2 epochs (trained)" in said("train", str(path))
    assert "each of 400 rows exactly once" in said("audit", config.run_url)
    evaluated = json.loads(said("evaluate", str(path), "--json"))
    assert (evaluated["split"], evaluated["network"]["rows"]) == ("test", 80)
    assert evaluated["network"]["auc"] > 0.95
    said("score", str(path))
    scored = spark.read.parquet(f"{tmp_path}/work/runs/first/scores/*")
    assert (scored.count(), scored.where("probability between 0 and 1").count()) == (80, 80)
