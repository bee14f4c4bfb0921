"""Write a split: global shuffle, equal files, equal row groups, Petastorm metadata; then read back what was written.

Spark's Parquet writer writes native columns; no row passes through Python. The manifest's facts about the files (rows, bytes,
hashes, digest) are read from the files themselves.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import NamedTemporaryFile

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType

from sparkring.conf.schema import PrepareConfig
from sparkring.errors import SourceError
from sparkring.pipelines.data.dataset.manifest import DataFile, Split
from sparkring.pipelines.data.dataset.row_schema import DataField, TensorSpec
from sparkring.pipelines.data.dataset.unischema_pickle import COMMON_METADATA
from sparkring.pipelines.data.loading.page_checksums import read_verified
from sparkring.pipelines.data.order.rowhash import add, rows_digest, to_hex
from sparkring.pipelines.data.stores.base import Store
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.encoding.describe import row_bytes
from sparkring.spark_jobs.etl.encoding.petastorm_schema import dataset_metadata, stored_type
from sparkring.spark_jobs.etl.encoding.schema_pickle import pickled_unischema
from sparkring.spark_jobs.etl.writing.add_checksums import copy_with_checksums, has_checksums
from sparkring.spark_jobs.etl.writing.file_layout import BUCKET_BITS, NUM_BUCKETS, FileLayout, lay_out_files
from sparkring.spark_jobs.etl.writing.staging import cleared_on_error, writing_area
from sparkring.spark_jobs.spark.driver_log import only_errors
from sparkring.spark_jobs.spark.session import spark_path

PARQUET_WRITER = "org.apache.parquet.hadoop.InternalParquetRecordWriter"
"""Its logger warns of each row group that is larger than the limit, hundreds of lines each; see ``_group_options`` for the limit."""
_CHUNK = 8 << 20
_READERS = 4
"""Files that are read back at once."""
WRITER_OPTIONS = {"parquet.writer.version": "PARQUET_2_0", "parquet.enable.dictionary": "false", "compression": "snappy",
                  "parquet.page.write-checksum.enabled": "true"}
"""Each page gets a checksum, whatever the session says; Spark 3.5 leaves it out, so ``collect_files`` adds it (``add_checksums.py``). Each
column gets one encoding: where there are several, as in format 1, the footer lists them in the order of a Java hash set, which differs from
JVM to JVM, and equal content would have unequal hashes. Integers are delta-packed, so small ids take few bits all the same."""


def split_layouts(examples: DataFrame, config: PrepareConfig, tensors: Sequence[TensorSpec], *, split: Column,
                  made: bool = False) -> dict[str, FileLayout]:
    """Count the rows of each split and bucket, check that ids are unique, and lay out each split's files.

    Args:
        examples: The row id and the columns that ``split`` needs.
        config: Seed, files, row groups.
        tensors: The tensors that a row becomes.
        split: The split of an example.
        made: Whether the ids were made of the rows' content (``identity.py``).
    Returns:
        A layout for each split that has rows.
    Raises:
        SourceError: an id stands for several rows.
    """
    ids = examples.groupBy(named(config.id_column).cast("bigint").alias("id")).agg(
        sf.count(sf.lit(1)).alias("rows"), sf.min(split).alias("split"))
    bucket = sf.shiftrightunsigned(_key(sf.col("id"), config.seed), 64 - BUCKET_BITS).cast("int")
    counts = ids.groupBy("split", bucket.alias("bucket")).agg(
        sf.sum("rows").alias("rows"), sf.max("rows").alias("most"), sf.max_by("id", "rows").alias("worst")).collect()
    worst = max(counts, key=lambda row: row["most"])
    if worst["most"] > 1 and made:
        raise SourceError(f"{config.id_column} was made of each row's content, and {worst['worst']} came out for {worst['most']} rows of "
                          "different content, which happens to one dataset of 16 M rows in 100,000; name a key in prepare.row_id.")
    if worst["most"] > 1:
        raise SourceError(f"{config.id_column} is not unique: {worst['worst']} stands for {worst['most']} rows; "
                          "check that no join of the query matches a row twice, or choose a column that is unique.")
    rows: dict[str, list[int]] = {}
    for row in counts:
        rows.setdefault(row["split"], [0] * NUM_BUCKETS)[row["bucket"]] = row["rows"]
    return {name: lay_out_files(buckets, num_files=config.num_files, row_bytes=row_bytes(tensors), group_bytes=config.row_group_mb * 1e6,
                          min_groups=config.min_row_groups) for name, buckets in rows.items()}


def write_split(encoded: DataFrame, store: Store, folder: str, *, fields: Sequence[DataField], layout: FileLayout,
                seed: int | None) -> None:
    """Write the rows of one split in their final order.

    Args:
        encoded: The rows, with the fields' columns; the first field is the row id, the second the label.
        store: The dataset's.
        folder: The split's folder in it, which does not exist yet.
        fields: The columns to write.
        layout: Files and row groups.
        seed: Seed of the shuffle; None keeps the rows' order, one file a partition.
    """
    rows = encoded.select(*(_as_stored(named(field.name), field).alias(field.name) for field in fields))
    if seed is not None:
        rows = _in_order(rows, key=_key(named(fields[0].name), seed), layout=layout)
    spread = spread_of(folder)
    with writing_area(store, encoded.sparkSession) as area, only_errors(encoded.sparkSession, PARQUET_WRITER):
        with cleared_on_error(area, spread):
            rows.write.options(**WRITER_OPTIONS, **_group_options(layout.group_rows)).parquet(spark_path(area.path(spread)))
        collect_files(area, spread, store, folder, num_files=None if seed is None else layout.num_files)


def _in_order(rows: DataFrame, *, key: Column, layout: FileLayout) -> DataFrame:
    """All rows of file i in task i, by key. Spark writes one file a task, and numbers the files as it does the tasks."""
    bucket = sf.shiftrightunsigned(key, 64 - BUCKET_BITS)
    number = sum(((bucket >= border).cast("int") for border in layout.borders), start=sf.lit(0))
    dealt_to = sf.array(*map(sf.lit, _one_a_task(rows.sparkSession, layout.num_files)))
    return rows.repartition(layout.num_files, dealt_to[number]).sortWithinPartitions(key)


def _one_a_task(spark: SparkSession, count: int) -> list[int]:
    """Integers that Spark's ``repartition(count, ...)`` sends to the tasks 0 .. count - 1, in this order.

    Spark takes the hash modulo ``count``, so among many integers there is one for each task. The files' own numbers
    would collide: of 0 to 3, three went to one task.
    """
    tried = 20 * count
    while True:
        dealt = spark.sql(f"SELECT transform(sequence(0, {tried}), number -> pmod(hash(number), {count}))").collect()[0][0]
        first = {task: number for number, task in reversed(list(enumerate(dealt)))}
        if len(first) == count:
            return [first[task] for task in range(count)]
        tried *= 2


def spread_of(folder: str) -> str:
    """Where Spark writes before the files move to ``folder``: beside it, under a name that readers skip."""
    parent, name = posixpath.split(folder)
    return f"{parent}/.{name}.writing"


def collect_files(area: Store, spread: str, store: Store, folder: str, *, num_files: int | None) -> None:
    """Rename ``part-00003-<job>.parquet`` to ``part-00003.parquet``, so that names do not depend on the job; add page checksums if missing.

    Args:
        area: Where Spark wrote; the dataset's own store, or a local one that is uploaded from.
        spread: The folder that it wrote.
        store: The dataset's.
        folder: The split's folder in it.
        num_files: The expected number of files; None for any.
    """
    written = [name for name in area.names(spread) if name.endswith(".parquet")]
    assert num_files in (None, len(written)), f"Spark wrote {len(written)} files, expected {num_files}: {written}"
    for number, name in enumerate(written):
        _collect(area, f"{spread}/{name}", store, f"{folder}/part-{number:05d}.parquet")
    area.delete(spread)


def _collect(area: Store, name: str, store: Store, target: str) -> None:
    with area.open_input(name) as source:
        if not has_checksums(source):
            with NamedTemporaryFile(prefix="sparkring-") as copy:
                copy_with_checksums(source, copy)
                copy.flush()
                store.upload(Path(copy.name), target)
            return
    if area is store:
        store.move(name, target)
    else:
        store.upload(Path(area.path(name)), target)


def read_back(store: Store, folder: str, fields: Sequence[DataField]) -> Split:
    """Add Petastorm's metadata to a written split and describe its files.

    Args:
        store: The dataset's.
        folder: The split's folder in it.
        fields: The columns; the first is the row id, the second the label (of type int8 where it is 0 or 1).
    Returns:
        What the manifest says about the split.
    """
    row_id, label = fields[:2]
    wanted = [row_id.name, label.name] if label.dtype == "int8" else [row_id.name]
    names = [f"{folder}/{name}" for name in store.names(folder) if name.endswith(".parquet")]
    with ThreadPoolExecutor(_READERS) as pool:
        read = list(pool.map(lambda name: describe_file(store, name, columns=wanted), names))
    files, tables = tuple(file for file, _ in read), [table for _, table in read]
    with store.open_input(names[-1]) as source:
        schema = pq.read_schema(source)
    metadata = dataset_metadata(schema, pickled_unischema(posixpath.basename(folder), fields),
                                {posixpath.basename(file.path): len(file.row_groups) for file in files})
    store.put(f"{folder}/{COMMON_METADATA}", metadata)
    positives = sum(int(table[label.name].to_numpy().sum(dtype="int64")) for table in tables) if label.name in wanted else None
    digest = add(rows_digest(table[row_id.name].to_numpy()) for table in tables)
    return Split(files=files, rows=sum(file.rows for file in files), positives=positives, rows_digest=to_hex(digest))


def describe_file(store: Store, name: str, *, columns: list[str]) -> tuple[DataFile, pa.Table]:
    """Describe a file as in the manifest, and read some of its columns."""
    with store.open_input(name) as source:
        size, sha256 = source.size(), _sha256(source)
        parquet = pq.ParquetFile(source)
        groups = [parquet.metadata.row_group(number) for number in range(parquet.metadata.num_row_groups)]
        sizes = (sum(group.column(column).total_compressed_size for column in range(group.num_columns)) for group in groups)
        file = DataFile(path=name, bytes=size, sha256=sha256, row_groups=tuple(group.num_rows for group in groups),
                        row_group_bytes=tuple(sizes))
        source.seek(0)
        return file, read_verified(source, path=store.path(name), columns=columns)


def _sha256(source: pa.NativeFile) -> str:
    """Over all bytes; leaves the file at its beginning."""
    digest = hashlib.sha256()
    while chunk := source.read_buffer(_CHUNK):
        digest.update(chunk)
    source.seek(0)
    return digest.hexdigest()


def _key(row_id: Column, seed: int) -> Column:
    """A 64-bit hash of the id. Different ids have different keys, because XXH64 of eight bytes is invertible."""
    return sf.xxhash64(row_id, sf.lit(seed).cast("bigint"))


def _group_options(rows: int) -> dict[str, str]:
    """Writer options that end each row group, and each of its pages, after exactly ``rows`` rows.

    ``parquet.block.row.count.limit`` exists only from parquet-java 1.16 (Spark 4.1) on. Every version checks a
    row group's size after a number of rows between two settings. Here both are ``rows`` and the size limit is one byte,
    so the first check ends the row group.
    """
    return {"parquet.block.size": "1", "parquet.page.size.row.check.min": str(rows), "parquet.page.size.row.check.max": str(rows),
            "parquet.page.row.count.limit": str(rows),
            "maxRecordsPerFile": "0"}  # overrides the session: the layout decides the number of files


def _as_stored(column: Column, field: DataField) -> Column:
    """The column in its field's type. If no row may be null, coalesce tells Spark so, and Parquet marks the column REQUIRED."""
    kind = stored_type(field)
    if field.nullable:
        return column.cast(kind)
    return sf.coalesce(column.cast(kind), sf.lit(b"") if kind == BinaryType() else sf.lit(0).cast(kind))
