"""The doctor's look at the query, and headers of CSV files as Spark itself reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkring.conf.loading import load_config, parse_config, shipped_configs
from sparkring.conf.schema import SourceConfig
from sparkring.spark_jobs.diagnosis.check import Check, guarded
from sparkring.spark_jobs.diagnosis.data import check_query
from sparkring.spark_jobs.etl.sources.first_look import first_look
from tests.support.configs import MINIMAL

pytest_plugins = ["tests.support.spark_sessions"]


def _look(spark: SparkSession, **prepare: Any) -> Check:
    config = parse_config(MINIMAL | {"prepare": MINIMAL["prepare"] | prepare}, origin="test")
    return guarded("query", lambda: check_query(spark, config))


@pytest.mark.parametrize("name", [name for name in shipped_configs() if name.startswith("base/")])
def test_the_query_of_each_shipped_config_yields_what_it_names(spark: SparkSession, name: str) -> None:
    check = check_query(spark, load_config(name))
    assert check.status == "ok", check.found
    assert spark.catalog.listTables() == []


def test_all_columns_that_the_query_lacks_are_told_and_no_row_is_read(spark: SparkSession) -> None:
    """The file of the source does not even exist."""
    check = _look(spark, label="lates", features={"numeric": ["km", "kms"], "categorical": ["city"]})
    assert check.status == "fail"
    assert [part.partition(",")[0] for part in check.found.split("; ")] == [
        "prepare.label names column lates", "prepare.features.numeric names column kms", "prepare.features.categorical names column city"]
    assert "Did you mean 'late'?; it yields row_id, late, day, km." in check.advice
    assert _look(spark).status == "ok"


def test_a_query_that_cannot_run_and_a_type_that_is_none_are_told(spark: SparkSession) -> None:
    assert "prepare.query cannot run" in _look(spark, query="SELECT nothing FROM trips").found
    assert "'txt' is not a Spark SQL type" in _look(spark, sources={"trips": {"path": "trips.csv", "columns": {"id": "txt"}}}).found


@pytest.mark.parametrize("text", ["id,,NA,a,A\n1,2,3,4,5\n", "\ufeffid,km\n1,2\n", "\n  \n\"id\",\"k\"\"m\"\n1,2\n", " id ,km\n1,2\n"])
def test_a_header_has_the_names_that_spark_gives_it(spark: SparkSession, tmp_path: Path, text: str) -> None:
    path = tmp_path / "trips.csv"
    path.write_text(text, encoding="utf-8")
    source = SourceConfig(path=str(path), columns={"id": "int"}, null_value="NA")
    names = spark.read.options(mode="FAILFAST", columnPruning=False, escape='"').csv(str(path), header=True, nullValue="NA").columns
    assert first_look({"trips": source}).headers["trips"] == names
