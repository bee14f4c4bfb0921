"""Read the files that a manifest names with Spark, for appending and for the baselines of an evaluation; errors are one line.

Training (``pipelines/data/loading/reader.py``) and predictions (``scoring/predict_split.py``) read them without it. On S3, Spark needs
Hadoop's ``s3a``, which does not come with pyspark; docs/reference/stores.md says how to get it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import urlparse

from pyspark.sql import DataFrame, SparkSession

from sparkring.errors import EnvironmentProblem, SourceError, StorageError
from sparkring.pipelines.data.dataset.manifest import DataFile
from sparkring.pipelines.data.loading.page_checksums import verify_file
from sparkring.pipelines.data.stores.base import Store
from sparkring.spark_jobs.etl.sources.literal_paths import literal
from sparkring.spark_jobs.spark.errors import CLIENTS, SPARK_ERRORS, error_of_worker, lacks_client, reason
from sparkring.spark_jobs.spark.session import spark_path
from sparkring.spark_jobs.spark.versions.supported import verifies_pages

READER_OPTIONS = {"parquet.page.verify-checksum.enabled": "true"}
"""By default, Spark's reader ignores page checksums."""
_READERS = 4
"""Files that the driver verifies at once."""


def read_committed(spark: SparkSession, store: Store, files: Iterable[DataFile], *, verified: bool = False) -> DataFrame:
    """Return a frame of exactly these files; no row is read yet.

    Spark verifies the pages that it will read. Spark 3.5 cannot, so there the driver verifies the files now.

    Args:
        spark: The session to read with.
        store: The dataset's.
        files: As the manifest names them.
        verified: Whether this command has read the same files by this function before.
    Raises:
        EnvironmentProblem: Spark has no client for such a store.
        StorageError: Spark cannot open a file.
        ConfigError: Spark's readers cannot take the name of its folder.
        DatasetError: the driver found a damaged page.
    """
    files = tuple(files)
    if not (verified or verifies_pages(spark.version)):
        with ThreadPoolExecutor(_READERS, thread_name_prefix="sparkring-pages") as pool:
            list(pool.map(lambda file: verify_file(store, file.path), files))
    try:
        frame = spark.read.options(**READER_OPTIONS).parquet(*(literal(spark_path(store.path(file.path))) for file in files))
        _ = frame.schema  # with Spark Connect, the first access to the files
    except SPARK_ERRORS as error:
        if lacks_client(error):
            client = CLIENTS.get(urlparse(store.path("")).scheme, "its client")
            raise EnvironmentProblem(
                f"Spark cannot read {store.url}: {reason(error)}; to evaluate or append, add "
                f"{client} of Spark's Hadoop release to spark.conf.spark.jars.packages (docs/reference/stores.md).") from error
        raise StorageError(f"Spark cannot read {store.url}: {reason(error)}; check that its files exist, and that Spark "
                           "(the driver and the executors) reaches them with its own settings (docs/reference/stores.md).") from error
    return frame


@contextmanager
def naming_damaged_pages(store: Store, files: Iterable[DataFile]) -> Iterator[None]:
    """Turn Spark's error about a damaged page into ours; put it around actions on rows of these files.

    Spark's reader names at most the file, so the file is read again to find the row group and the column. A Python worker that read it
    by itself (``scoring/predict_split.py``) has told all of it.

    Args:
        store: The dataset's.
        files: The files that Spark reads.
    Raises:
        DatasetError: a page is damaged; the error names its file, row group and column.
        SourceError, StorageError: what a Python worker raised.
    """
    try:
        yield
    except (*SPARK_ERRORS, SourceError) as error:  # prepare may have taken it for a failure of the query
        told = error_of_worker(error)
        if told is not None:
            raise told from error
        if "FAILED_READ_FILE" in str(error) or "page integrity" in str(error):
            for file in _suspects(str(error), files):
                verify_file(store, file.path)
        raise


def _suspects(error: str, files: Iterable[DataFile]) -> Iterator[DataFile]:
    """The files on which Spark may have failed: those that its error names, else all."""
    named = set(re.findall(r"[^/\s]+\.parquet", error))
    return (file for file in files if not named or file.path.rpartition("/")[2] in named)
