"""The names of the documents behind a text dataset, listed beside its rows so that an append can tell which ones are new.

    <url>/data/<data_id>/documents/part-*.parquet     one column, named by the manifest like the files of rows
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from sparkring.errors import DatasetError
from sparkring.pipelines.data.dataset.manifest import DataFile, Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.stores.base import Store
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.encoding.tokens import TokenEncoding
from sparkring.spark_jobs.etl.sources.committed_files import read_committed
from sparkring.spark_jobs.etl.writing.staging import cleared_on_error, writing_area
from sparkring.spark_jobs.etl.writing.write_dataset import WRITER_OPTIONS, collect_files, describe_file, spread_of
from sparkring.spark_jobs.spark.session import spark_path

FOLDER, COLUMN = "documents", "document"
TOKENIZER = "tokenizer.json"
"""The tokenizer beside the list; it does not exist if tokens are bytes."""


def write_documents(documents: DataFrame, store: Store, folder: str, *, column: str) -> tuple[DataFile, ...]:
    """Write the names of documents, sorted and without repeats.

    Args:
        documents: A document a row.
        store: The dataset's.
        folder: The version's folder in it.
        column: The column of ``documents`` that names them.
    Returns:
        The files as the manifest describes them.
    """
    names = documents.select(named(column).alias(COLUMN)).distinct().repartition(1).sortWithinPartitions(COLUMN)
    target = f"{folder}/{FOLDER}"
    spread = spread_of(target)
    with writing_area(store, documents.sparkSession) as area:
        with cleared_on_error(area, spread):
            names.write.options(**WRITER_OPTIONS).parquet(spark_path(area.path(spread)))
        collect_files(area, spread, store, target, num_files=None)
    return tuple(describe_file(store, f"{target}/{name}", columns=[])[0] for name in store.names(target))


def without_known(documents: DataFrame, dataset: Dataset, parent: Manifest, *, column: str) -> DataFrame:
    """The documents whose names ``parent`` does not list.

    Raises:
        EnvironmentProblem, StorageError: Spark cannot read its list.
    """
    known = read_committed(documents.sparkSession, dataset.store, parent.documents).select(sf.col(COLUMN).alias("__known"))
    return documents.join(known, named(column) == sf.col("__known"), "left_anti")


def kept_encoding(dataset: Dataset, parent: Manifest) -> TokenEncoding:
    """The encoding of ``parent``'s texts, from the tokenizer that the dataset keeps.

    Raises:
        DatasetError: its tokenizer is missing or has changed.
    """
    tokens = parent.preprocessing.tokens
    assert tokens is not None
    if tokens.tokenizer_sha256 is None:
        return TokenEncoding()
    name = f"data/{parent.data_id}/{TOKENIZER}"
    try:
        encoding = TokenEncoding.of(dataset.store.read(name).decode())
    except Exception as error:  # noqa: BLE001 - tokenizers raises no other class
        raise DatasetError(f"{dataset.url}/{name}, the tokenizer of version {parent.version}, cannot be read: {error}; "
                           "restore it from a copy, or prepare without --append.") from None
    if encoding.sha256 != tokens.tokenizer_sha256:
        raise DatasetError(f"{dataset.url}/{name} has SHA-256 {encoding.sha256}, version {parent.version} says {tokens.tokenizer_sha256}; "
                           "restore it from a copy, or prepare without --append.")
    return encoding
