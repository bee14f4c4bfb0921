"""What is advised about a column of another type than its role needs can be followed."""

from __future__ import annotations

import pytest
from pyspark.sql.types import DataType, DoubleType, LongType, StringType

from sparkring.spark_jobs.etl.columns.roles import cast_advice


@pytest.mark.parametrize(("key", "found", "expected", "advice"), [
    pytest.param("prepare.row_id", StringType(), "bigint", "else a hash of them, xxhash64(c) AS c", id="a text that names a row"),
    pytest.param("prepare.label", StringType(), "int (0 or 1)", "CAST(c = 'yes' AS INT) AS c, or set prepare.task: multiclass",
                 id="yes and no"),
    pytest.param("prepare.label", DoubleType(), "string or bigint", "(regression) is not supported yet", id="a measured label"),
    pytest.param("prepare.features.numeric", StringType(), "double", "name it in prepare.features.categorical instead",
                 id="a text as a number"),
    pytest.param("prepare.features.moments", StringType(), "timestamp", "to_timestamp(c, 'yyyy-MM-dd HH:mm:ss') AS c", id="text as time"),
    pytest.param("prepare.split.column", LongType(), "string that says train", "CAST(c AS STRING)", id="any other")])
def test_the_advice_fits_the_column(key: str, found: DataType, expected: str, advice: str) -> None:
    assert advice in cast_advice(key, "c", found, expected)
