"""The supported versions of Spark: what is refused, and the Java, the Scala and the packages of each."""

from __future__ import annotations

import pytest

from sparkring.errors import EnvironmentProblem
from sparkring.spark_jobs.etl.sources.stored_tables import lacking
from sparkring.spark_jobs.spark.versions.supported import (
    java_versions,
    minor,
    require_supported,
    require_supported_arrow,
    scala_version,
)

UNKNOWN = Exception("[DATA_SOURCE_NOT_FOUND] Failed to find the data source")


@pytest.mark.parametrize("version", ["3.5.0", "3.5.9", "4.0.5", "4.1.4", "4.2.0", "4.3.0", "4.4.0.dev1"])
def test_a_classic_session_of_these_is_taken(version: str) -> None:
    require_supported(version, connect=False)


@pytest.mark.parametrize("version", ["4.0.0", "4.3.0"])
def test_connect_is_taken_from_spark_4_on(version: str) -> None:
    require_supported(version, connect=True)


@pytest.mark.parametrize(("version", "connect", "words"), [
    pytest.param("3.4.4", False, r"found Spark 3\.4\.4, which lacks .*; use Spark 3\.5 or later", id="Spark 3.4"),
    pytest.param("3.5.9", True, r"found Spark Connect 3\.5\.9, whose client .*; use a classic session \(spark\.master\), or Spark 4\.0",
                 id="Connect of Spark 3.5")])
def test_what_is_not_supported_is_refused_with_the_reason(version: str, connect: bool, words: str) -> None:
    with pytest.raises(EnvironmentProblem, match=words):
        require_supported(version, connect=connect)


@pytest.mark.parametrize("version", ["14.0.1", "14.1", "26.0.1", "27.0.0.dev12"])
def test_these_arrows_are_taken(version: str) -> None:
    require_supported_arrow(version, where="here")


@pytest.mark.parametrize("version", ["14.0.0", "13", "9.0.0"])
def test_an_arrow_in_which_a_file_may_run_code_is_refused(version: str) -> None:
    with pytest.raises(EnvironmentProblem, match=rf"found pyarrow {version} on alpha, .*; install pyarrow 14\.0\.1 or later"):
        require_supported_arrow(version, where="on alpha")


@pytest.mark.parametrize(("version", "java", "scala"), [
    ("3.5.2", (8, 11, 17), "2.12"), ("4.0.5", (17, 21), "2.13"), ("4.3.0", (17, 21), "2.13")])
def test_each_has_its_java_and_its_scala(version: str, java: tuple[int, ...], scala: str) -> None:
    assert (java_versions(version), scala_version(version)) == (java, scala)


def test_a_version_before_a_release_is_read() -> None:
    assert minor("4.10.0.dev1") == (4, 10)


@pytest.mark.parametrize(("version", "kind", "words"), [
    ("3.5.9", "avro", "org.apache.spark:spark-avro_2.12:3.5.9"), ("4.1.4", "avro", "org.apache.spark:spark-avro_2.13:4.1.4"),
    ("3.5.2", "iceberg", "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12"),
    ("4.0.5", "delta", "io.delta:delta-spark_2.13 for Spark 4.0"),
    ("4.1.4", "delta", "io.delta:delta-spark_4.1_2.13 for Spark 4.1"), ("4.0.5", "jdbc", "the database's JDBC driver")])
def test_the_package_that_a_source_lacks_is_the_one_for_this_spark(version: str, kind: str, words: str) -> None:
    assert words in lacking(kind, UNKNOWN, version)


def test_no_package_is_advised_for_another_error_or_a_format_that_needs_none() -> None:
    assert lacking("avro", Exception("[PATH_NOT_FOUND] no such file"), "4.0.5") == lacking("csv", UNKNOWN, "4.0.5") == ""
