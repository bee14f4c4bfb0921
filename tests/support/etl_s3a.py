"""A program whose Spark is a cluster and reads and writes S3 by itself, with Hadoop's ``s3a``; prints, as its last line, what came of it.

    python -m tests.support.etl_s3a FOLDER MASTER BUCKET-URL            with s3a
    python -m tests.support.etl_s3a FOLDER MASTER BUCKET-URL without    as pyspark comes

The jars are those that the packages in docs/reference/stores.md stand for; ``jars.py`` fetches them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql import SparkSession

from sparkring.conf.schema import SparkConfig
from sparkring.errors import SparkringError
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.score import score
from sparkring.spark_jobs.spark.session import spark_session
from tests.support.etl_tables import etl_config, save_untrained
from tests.support.jars import s3a_jars
from tests.support.remote_folders import remote
from tests.support.versions import damage


def main(folder: Path, master: str, bucket: str, *, with_s3a: bool) -> None:
    """Do everything with one session; which jars there are is decided when its JVM starts."""
    conf = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2"}  # 200 tasks would be most of the time
    spark = spark_session(SparkConfig(master=master, conf=conf | (_s3a() if with_s3a else {})), app_name="s3a")
    if with_s3a:
        found = {"folders": remote(f"{bucket}/a folder", folder, spark, spark_root=f"{bucket.replace('s3:', 's3a:')}/a folder"),
                 **_written(folder, bucket, spark)}
    else:
        found = {"error": _refused(folder / "without", bucket, spark)}
    print(json.dumps(found))
    spark.stop()


def _s3a() -> dict[str, str]:
    """Keys are found in the environment; an endpoint other than AWS's own is not."""
    return {"spark.jars": ",".join(map(str, s3a_jars())),
            "spark.hadoop.fs.s3a.endpoint": os.environ["AWS_ENDPOINT_URL"], "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.endpoint.region": os.environ["AWS_DEFAULT_REGION"]}


def _refused(folder: Path, bucket: str, spark: SparkSession) -> str:
    try:
        prepare(etl_config(folder).model_copy(update={"dataset_url": f"{bucket}/without"}), spark=spark)
    except SparkringError as error:
        return str(error)
    return "it was written"


def _written(folder: Path, bucket: str, spark: SparkSession) -> dict[str, Any]:
    """A dataset that this cluster wrote to the bucket."""
    config = etl_config(folder / "trips").model_copy(update={"dataset_url": f"{bucket}/trips"})
    with patch("tempfile.TemporaryDirectory", wraps=tempfile.TemporaryDirectory) as folders:
        made = prepare(config, spark=spark)
    staged = [call.kwargs["prefix"] for call in folders.call_args_list if str(call.kwargs.get("prefix")).startswith("sparkring-")]
    dataset = Dataset(config.dataset)
    manifest = dataset.manifest()
    save_untrained(config)
    named = {file.path for split in manifest.splits.values() for file in split.files}
    there = {entry.name for entry in dataset.store.tree("data") if entry.name.endswith(".parquet")}
    return {"staged": staged, "damage": damage(dataset, 1), "left": sorted(there - named), "rows": made.rows,
            "reused": prepare(config, spark=spark).reused, "content_id": manifest.content_id, "scored": score(config, spark=spark).rows}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], with_s3a=len(sys.argv) == 4)
