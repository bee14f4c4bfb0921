"""Sources that are tables: of the session's catalogs, of a database, of Delta or of Iceberg.

Delta and Iceberg keep every version, so a version or snapshot identifies the rows. Tables of catalogs and databases
change under the same name, so a digest of their rows identifies them. A password goes from the environment to the
database's driver: no plan, error, log or manifest shows it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkring.conf.schema import DeltaSource, IcebergSource, JdbcSource, StoredTable, TableSource
from sparkring.errors import ConfigError, SourceError
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.columns.identity import content
from sparkring.spark_jobs.etl.sources.declared import missing_columns
from sparkring.spark_jobs.spark.errors import SPARK_ERRORS, reason
from sparkring.spark_jobs.spark.session import spark_path
from sparkring.spark_jobs.spark.versions.supported import minor, scala_version

PACKAGES = {
    "avro": "org.apache.spark:spark-avro_{scala}:{spark}",
    "delta": "io.delta:delta-spark_{delta}{scala} for Spark {minor}, and Delta's session settings (docs/how-to/preparing.md)",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-{minor}_{scala}, and a catalog (docs/how-to/preparing.md)",
    "jdbc": "the database's JDBC driver",
}
"""What a format needs in ``spark.jars.packages``; each package is built for one Scala, and all but a driver for one Spark."""
DELTA_BY_SPARK = (4, 1)
"""From this Spark on the name of Delta's package holds Spark's release."""


def address(config: StoredTable) -> str:
    """The table's name in errors and in the manifest."""
    match config:
        case TableSource(table=table):
            return f"table {table}"
        case JdbcSource(url=url):
            return url
        case DeltaSource(path=path, version=version):
            return path if version is None else f"{path} version {version}"
        case IcebergSource(table=table, snapshot_id=snapshot):
            return table if snapshot is None else f"{table} snapshot {snapshot}"


def open_table(spark: SparkSession, name: str, config: StoredTable) -> DataFrame:
    """Open the table with all its columns; only its schema is read.

    Args:
        spark: The session to read with.
        name: The source's name, for errors.
        config: Identifies the table.
    Raises:
        SourceError: Spark cannot find or open it.
        ConfigError: an environment variable that it names is not set.
    """
    reader = spark.read.options(**_options(name, config))
    try:
        match config:
            case TableSource(table=table):
                return reader.table(table)
            case JdbcSource():
                return reader.format("jdbc").load()
            case DeltaSource(path=path):
                return reader.format("delta").load(_reachable(path))
            case IcebergSource(table=table):
                return reader.format("iceberg").load(table)
    except SPARK_ERRORS as error:
        raise SourceError(f"source {name}: Spark cannot read {address(config)}: {redacted(config, reason(error))}; "
                          f"correct prepare.sources.{name}{lacking(config.format, error, spark.version)}.") from None


def at_latest(spark: SparkSession, name: str, config: StoredTable) -> StoredTable:
    """The config with the latest version of a Delta table, or snapshot of an Iceberg table, where it names none.

    Raises:
        SourceError: Spark cannot find the table, or it has no snapshot yet.
    """
    try:
        match config:
            case DeltaSource(path=path, version=None):
                quoted = _reachable(path).replace("`", "``")
                return config.changed(version=spark.sql(f"DESCRIBE HISTORY delta.`{quoted}` LIMIT 1").collect()[0]["version"])
            case IcebergSource(table=table, snapshot_id=None):
                found = spark.read.format("iceberg").load(f"{table}.refs").where("name = 'main'").collect()
                if not found:
                    raise SourceError(f"source {name}: {table} has no snapshot yet; write rows into it first.")
                return config.changed(snapshot_id=found[0]["snapshot_id"])
    except SPARK_ERRORS as error:
        raise SourceError(f"source {name}: Spark cannot read the history of {address(config)}: {reason(error)}; "
                          f"correct prepare.sources.{name}{lacking(config.format, error, spark.version)}.") from None
    return config


def identify_table(spark: SparkSession, name: str, config: StoredTable) -> dict[str, Any]:
    """Facts about the table for the manifest: equal facts mean equal rows.

    Raises:
        SourceError: it cannot be read, or lacks a column that is declared.
    """
    facts: dict[str, Any] = {"path": address(config), "format": config.format}
    match config:
        case DeltaSource(version=version):
            return facts | {"version": version}
        case IcebergSource(snapshot_id=snapshot):
            return facts | {"snapshot_id": snapshot}
        case JdbcSource(query=query):
            facts["query"] = query
    return facts | {"rows_digest": _digest(open_table(spark, name, config), name, config)}


def redacted(config: object, text: str) -> str:
    """The text of a foreign error, without the password that it may hold."""
    secret = os.environ.get(config.password_env or "") if isinstance(config, JdbcSource) else None
    return text.replace(secret, "***") if secret else text


def lacking(kind: str, error: Exception, version: str) -> str:
    """Advice on the package that Spark of this version lacks, if ``error`` says that it does not know the format; else an empty text."""
    signs = ("DATA_SOURCE_NOT_FOUND", "Failed to find data source", "ClassNotFoundException", "No suitable driver", "CONFIGURE_SPARK")
    unknown = any(sign in str(error) for sign in signs)
    if not unknown or kind not in PACKAGES:
        return ""
    release = "{}.{}".format(*minor(version))
    delta = f"{release}_" if minor(version) >= DELTA_BY_SPARK else ""
    package = PACKAGES[kind].format(scala=scala_version(version), spark=version, minor=release, delta=delta)
    return f", or add to spark.conf.spark.jars.packages {package}"


def _reachable(path: str) -> str:
    """A path of this machine, or a URL, as Spark takes it."""
    return path if urlparse(path).scheme else spark_path(str(Path(path).absolute()))


def _options(name: str, config: StoredTable) -> dict[str, str]:
    match config:
        case DeltaSource(version=int(version)) | IcebergSource(snapshot_id=int(version)):
            return {"versionAsOf": str(version)}
        case JdbcSource():
            given = {"url": config.url, "query": config.query, "driver": config.driver,
                     "user": _secret(name, config.user_env), "password": _secret(name, config.password_env)}
            return {key: value for key, value in given.items() if value is not None}
    return {}


def _secret(name: str, variable: str | None) -> str | None:
    if variable is not None and variable not in os.environ:
        raise ConfigError(f"prepare.sources.{name} takes a secret from the environment variable {variable}, which is not set; export it.")
    return os.environ[variable] if variable is not None else None


def _digest(table: DataFrame, name: str, config: StoredTable) -> str:
    """The number of rows, and the sum and exclusive or of their 64-bit hashes; the order of rows does not matter."""
    if missing := missing_columns(table.columns, name, config):
        raise missing[0]
    row = sf.xxhash64(*content([(named(column), table.schema[column].dataType) for column in config.columns or table.columns]))
    total = sf.sum(row.cast("decimal(20,0)")).cast("string")
    try:
        rows, added, mixed = table.agg(sf.count(sf.lit(1)), total, sf.bit_xor(row)).collect()[0]
    except SPARK_ERRORS as error:
        raise SourceError(f"source {name}: reading {address(config)} fails: {redacted(config, reason(error))}; "
                          f"correct prepare.sources.{name}.") from None
    return f"{rows}-{int(added or 0) % 2**64:016x}-{(mixed or 0) % 2**64:016x}"
