"""Where Spark writes files that are to lie in a store.

Into the store itself, wherever Spark has its file system: local folders, HDFS, and S3 on clusters (which mostly carry Hadoop's
``s3a``). Spark on one machine has no ``s3a`` and does not need it: there it writes to a temporary folder, and the files are
uploaded. docs/stores.md has the reasons.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from sparkring.errors import EnvironmentProblem
from sparkring.pipelines.data.local_store import LocalStore
from sparkring.pipelines.data.store import Store
from sparkring.spark_jobs.spark_errors import SPARK_ERRORS, reason


@contextmanager
def writing_area(store: Store, spark: SparkSession) -> Iterator[Store]:
    """The store that Spark can write to, ``store`` itself or a temporary one; files of a temporary one go with the block.

    Raises:
        EnvironmentProblem: Spark on a cluster has no client for S3.
    """
    if not store.url.startswith("s3:"):
        yield store
    elif (spark.conf.get("spark.master") or "").startswith("local"):
        with tempfile.TemporaryDirectory(prefix="sparkring-") as folder:
            yield LocalStore(Path(folder))
    else:
        try:
            yield store
        except SPARK_ERRORS as error:
            if "S3AFileSystem" not in str(error):
                raise
            raise EnvironmentProblem(f"Spark cannot write to {store.url}: {reason(error)}; set spark.conf.spark.jars.packages to "
                                     "org.apache.hadoop:hadoop-aws of the cluster's Hadoop release (docs/stores.md).") from error
