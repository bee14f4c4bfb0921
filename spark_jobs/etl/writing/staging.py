"""Where Spark writes files for a store.

Spark writes into the store itself if it has a client for it: local folders, HDFS, and on clusters S3 and others. Spark on one
machine usually has no client for object stores: there it writes to a temporary folder, and the files are uploaded.
docs/reference/stores.md has the reasons.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlparse

from pyspark.sql import SparkSession

from sparkring.errors import EnvironmentProblem
from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.local import LocalStore
from sparkring.spark_jobs.spark.errors import CLIENTS, SPARK_ERRORS, lacks_client, reason
from sparkring.spark_jobs.spark.settings import setting

LATE_S, LOOK_S = 5.0, 0.2
"""Seconds for the tasks of a job that failed or was cancelled to end, and between two looks at what they write."""


@contextmanager
def cleared_on_error(area: Store, folder: str) -> Iterator[None]:
    """Delete what Spark writes to ``folder`` in the block, if that fails: its tasks end a moment later than their job, and still write."""
    try:
        yield
    except BaseException:
        until, looks = time.monotonic() + LATE_S, 0
        while looks < 2 and time.monotonic() < until:
            with suppress(OSError):  # a task writes into it right now, or storage is away
                looks = 0 if list(area.tree(folder)) else looks + 1
                area.delete(folder)
            time.sleep(LOOK_S)
        raise


@contextmanager
def writing_area(store: Store, spark: SparkSession) -> Iterator[Store]:
    """Yield a store that Spark can write to: ``store``, or a temporary one that the block's end removes.

    Raises:
        EnvironmentProblem: Spark on a cluster has no client for such addresses.
    """
    scheme = urlparse(store.path("")).scheme
    if scheme in ("", "hdfs"):
        yield store
    elif (setting(spark, "spark.master") or "").startswith("local"):
        with tempfile.TemporaryDirectory(prefix="sparkring-") as folder:
            yield LocalStore(Path(folder))
    else:
        try:
            yield store
        except SPARK_ERRORS as error:
            if not lacks_client(error):
                raise
            raise EnvironmentProblem(
                f"Spark cannot write to {store.url}: {reason(error)}; set spark.conf.spark.jars.packages to "
                f"{CLIENTS.get(scheme, 'its client')} of the cluster's Hadoop release (docs/reference/stores.md).") from error
