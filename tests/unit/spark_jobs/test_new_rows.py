"""Which of several sources a failed read is blamed on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame

from sparkring.conf.schema import SourceConfig, TableSource
from sparkring.spark_jobs.etl.sources.tables import OpenTable, Source
from sparkring.spark_jobs.scoring.new_rows import _read_by

FAILED = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file"


def _opened(name: str, path: str | None, **settings: Any) -> OpenTable:
    """A source that is a file or folder, or a table of Spark's if it has no path."""
    if path is None:
        return OpenTable(Source(name, TableSource(format="table", table=name), None), cast(DataFrame, None), {})
    return OpenTable(Source(name, SourceConfig(path=path, **settings), None if ":" in path else Path(path)), cast(DataFrame, None), {})


@pytest.mark.parametrize(("said", "expected"), [
    pytest.param(f"{FAILED} file:///data/trips/1.parquet.", "trips", id="a folder"),
    pytest.param(f"{FAILED} file:///data/trips2/1.parquet.", "more", id="a folder whose name begins alike"),
    pytest.param(f"{FAILED} file:/data/my%20days/1%C3%A4.parquet.", "days", id="a name as in a URL"),
    pytest.param(f"{FAILED} hdfs://namenode:8020/lake/trips/1.parquet.", "far", id="a remote folder"),
    pytest.param(f"{FAILED} s3a://bucket/month/2013-10/1.parquet.", "pattern", id="a pattern"),
    pytest.param("Encountered error while reading file file:///data/trips/1.parquet. Details:", "trips", id="Spark 3.5"),
    pytest.param("Parquet column cannot be converted in file file:///data/trips/1.parquet. Column: [km]", "trips", id="a type, Spark 3.5"),
    pytest.param("Number of column in CSV header is not equal; CSV header does not conform to the schema. CSV file: file:///data/x.csv",
                 "csv", id="a header"),
    pytest.param(f"{FAILED} s3a://bucket/warehouse/shop/orders/1.parquet.", None, id="a file of a table"),
    pytest.param("[DIVIDE_BY_ZERO] Division by zero, in file:///data/trips/1.parquet", None, id="another error"),
])
def test_the_source_whose_file_the_error_names_is_the_one(said: str, expected: str | None) -> None:
    opened = [_opened("trips", "/data/trips", format="parquet"), _opened("more", "/data/trips2", format="parquet"),
              _opened("days", "/data/my days", format="parquet"), _opened("far", "hdfs:///lake/trips", format="parquet"),
              _opened("pattern", "s3://bucket/month/2013-*", format="parquet"),
              _opened("csv", "/data/x.csv", columns={"km": "int"}), _opened("orders", None)]
    found = _read_by(opened, said)
    assert (found and found.source.name) == expected


def test_an_only_source_is_the_one_whatever_the_error_names() -> None:
    [only] = [_opened("trips", "s3://bucket/trips", format="parquet")]
    assert _read_by([only], f"{FAILED} s3a://other/x.parquet") is only
    assert _read_by([only], "[DIVIDE_BY_ZERO] Division by zero") is None
