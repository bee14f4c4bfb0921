"""A program with a JVM of its own, for sources that need jars: prints, as its last line, what came of each.

    python -m tests.support.etl_jars FOLDER JAR ...
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkring.conf.schema import Config, DeltaSource, SparkConfig
from sparkring.errors import SparkringError
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.spark.session import spark_session
from tests.support.etl_tables import COLUMNS, etl_config

SECRET = "correct-horse-battery"
DRIVER = "org.h2.Driver"  # Java itself sees no driver that Spark was given as a jar
URL = "jdbc:h2:mem:shop;DB_CLOSE_DELAY=-1"


def main(folder: Path, jars: list[str]) -> None:
    """Prepare the same trips from each kind of table."""
    spark = spark_session(SparkConfig(master="local[2]", conf={
        "spark.jars": ",".join(jars),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog", "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": (folder / "lake").as_uri()}), app_name="tables that need jars")
    config = etl_config(folder)
    rows = spark.read.csv(str(folder / "trips.csv"), header=True, nullValue="NA").select(
        *(sf.col(name).cast(kind).alias(name) for name, kind in COLUMNS.items()))
    results = {"csv": _prepared(config, spark)}
    results |= _delta(spark, config, folder, rows) | _iceberg(spark, config, rows) | _avro(spark, config, folder, rows)
    results |= _jdbc(spark, config, rows)
    print(json.dumps(results))


def _with(config: Config, **source: Any) -> Config:
    prepare_settings = config.prepare.model_dump() | {"sources": {"trips": {"columns": COLUMNS, **source}}}
    return Config.model_validate(config.model_dump() | {"prepare": prepare_settings})


def _prepared(config: Config, spark: SparkSession) -> dict[str, Any]:
    result = prepare(config, spark=spark)
    manifest = Dataset(config.dataset).manifest()
    return {"content_id": manifest.content_id, "reused": result.reused, "facts": manifest.source["trips"]}


def _refused(config: Config, spark: SparkSession) -> str:
    try:
        prepare(config, spark=spark)
    except SparkringError as error:
        return str(error)
    return "not refused"


def _delta(spark: SparkSession, config: Config, folder: Path, rows: DataFrame) -> dict[str, Any]:
    path = str(folder / "delta")
    rows.write.format("delta").save(path)
    first = _prepared(_with(config, format="delta", path=path, version=0), spark)
    rows.limit(5).write.format("delta").mode("append").save(path)
    return {"delta": first, "delta again": _prepared(_with(config, format="delta", path=path, version=0), spark),
            "delta beyond": _refused(_with(config, format="delta", path=path, version=7), spark),
            "delta latest": _refused(_with(config, format="delta", path=path), spark),
            "delta mended": _latest(spark, rows, _with(config, format="delta", path=path))}


def _latest(spark: SparkSession, rows: DataFrame, config: Config) -> dict[str, Any]:
    """The latest version of a table, whose repeated rows are taken out."""
    source = config.prepare.sources["trips"]
    assert isinstance(source, DeltaSource)
    rows.write.format("delta").mode("overwrite").save(source.path)
    return _prepared(config, spark)


def _iceberg(spark: SparkSession, config: Config, rows: DataFrame) -> dict[str, Any]:
    rows.writeTo("lake.shop.trips").create()
    snapshot = spark.table("lake.shop.trips.snapshots").collect()[0]["snapshot_id"]
    rows.limit(5).writeTo("lake.shop.trips").append()
    pinned = {"format": "iceberg", "table": "lake.shop.trips", "snapshot_id": snapshot}
    return {"iceberg": _prepared(_with(config, **pinned), spark), "iceberg again": _prepared(_with(config, **pinned), spark),
            "iceberg beyond": _refused(_with(config, **pinned | {"snapshot_id": 7}), spark),
            "iceberg latest": _refused(_with(config, **pinned | {"snapshot_id": None}), spark)}


def _avro(spark: SparkSession, config: Config, folder: Path, rows: DataFrame) -> dict[str, Any]:
    rows.write.format("avro").save(str(folder / "avro"))
    return {"avro": _prepared(_with(config, format="avro", path=str(folder / "avro")), spark)}


def _jdbc(spark: SparkSession, config: Config, rows: DataFrame) -> dict[str, Any]:
    table = {"url": URL, "dbtable": "trips", "user": "etl", "password": SECRET, "driver": DRIVER}
    (rows.withColumn("day", sf.unix_seconds("day")).write.format("jdbc").options(**table).save())  # a database's idea of time zones aside
    moment = "DATEADD(SECOND, \"day\", TIMESTAMP WITH TIME ZONE '1970-01-01 00:00:00+00')"
    query = f'SELECT "id", {moment} AS "day", "km", "city", "late" FROM trips'
    source = {"format": "jdbc", "url": URL, "query": query, "user_env": "SHOP_USER", "password_env": "SHOP_PASSWORD", "driver": DRIVER}
    config = _with(config, **source)
    unset = _refused(config, spark)
    os.environ |= {"SHOP_USER": "etl", "SHOP_PASSWORD": SECRET}
    spark.sparkContext.setLogLevel("INFO")  # all that is logged comes to the test, which looks for the password
    found = {"jdbc": _prepared(config, spark), "jdbc again": _prepared(config, spark)}
    os.environ["SHOP_PASSWORD"] = f"wrong {SECRET}"
    wrong = _refused(config, spark)
    os.environ["SHOP_PASSWORD"] = SECRET
    rows.limit(1).withColumn("day", sf.unix_seconds("day")).write.format("jdbc").options(**table).mode("append").save()
    changed = _refused(config, spark)  # the same id twice
    return {**found, "jdbc unset": unset, "jdbc wrong": wrong, "jdbc changed": changed}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
