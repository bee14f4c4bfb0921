"""Sources that are folders of files: images, IDX files, texts. Each format has its own columns.

    images   path (below the folder), label (name of the folder that the file lies in; null at the top), image (the file's bytes)
    idx      id, part, label, image (PNG): idx.py
    text     path (below the folder), content (the file's bytes, unpacked if the pattern ends in .gz)

In a local or mounted folder the driver lists the files and the executors read them. Elsewhere Spark's ``binaryFile`` does both,
and skips names that begin with ``_`` or ``.``.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkring.conf.schema import SourceConfig
from sparkring.errors import SourceError
from sparkring.spark_jobs.etl.sources.idx import COLUMNS, read_idx
from sparkring.spark_jobs.etl.sources.literal_paths import require_utf8
from sparkring.spark_jobs.etl.sources.local_files import files_below
from sparkring.spark_jobs.spark.errors import SPARK_ERRORS, reason
from sparkring.spark_jobs.spark.versions.arrow_frames import frame_of

FORMATS = {"images": "path string, label string, image binary", "idx": COLUMNS, "text": "path string, content binary"}
"""Their columns."""
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
_NOT_OURS = ("__pycache__", "site-packages", "dist-packages")
"""Folders inside Python's library that are not part of it."""
_BATCH_BYTES = 32 << 20
_FILES_A_TASK = 256


def read_folder(spark: SparkSession, name: str, config: SourceConfig, local: Path | None, *, cache: Path) -> tuple[DataFrame, int]:
    """Read a source whose format is one of ``FORMATS``.

    Args:
        spark: The session to read with.
        name: The source's name, for errors.
        config: Its path, format and pattern.
        local: Its folder on this machine; None if only Spark can reach it.
        cache: Folder that unpacked files go to; all executors must see it.
    Returns:
        A frame with the format's columns, and its number of rows.
    Raises:
        SourceError: no file fits.
    """
    if config.format == "idx":
        if local is None:
            raise SourceError(f"source {name}: IDX files are read from a local or mounted folder, not from {config.path}; copy them.")
        frame = read_idx(spark, name, local, cache=cache)
        return frame, frame.select("id").count()
    if local is None:
        files, rows = _read_remote(spark, name, config)
    else:
        listed = list(folder_files(local, config))
        for file in listed:
            require_utf8(name, file)
        files, rows = _read_local(spark, local, listed), len(listed)
    if not rows:
        what = "image" if config.format == "images" else "file"
        raise SourceError(f"source {name}: {config.path} holds no {what} whose name fits {config.pattern!r}; "
                          f"correct prepare.sources.{name}.path or pattern.")
    if config.format == "text":
        return files.mapInArrow(_unpack_files, FORMATS["text"]) if config.pattern.endswith(".gz") else files, rows
    return files.select("path", _folder_of("path").alias("label"), sf.col("content").alias("image")), rows


def folder_files(folder: Path, config: SourceConfig) -> Iterator[Path]:
    """The files of a local folder that a source reads, ordered by name.

    Hidden files and folders are skipped, and so are packages installed into Python's library.
    """
    for file in files_below(folder, skipped=lambda name: name.startswith(".") or name in _NOT_OURS):
        if fnmatch(file.name, config.pattern) and (config.format != "images" or _is_image(file.name)):
            yield file


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_ENDINGS)


def _read_local(spark: SparkSession, folder: Path, files: list[Path]) -> DataFrame:
    names = [file.relative_to(folder).as_posix() for file in files]
    listed = pa.table({"path": pa.array(names, pa.string()), "file": pa.array(map(str, files), pa.string())})
    tasks = max(-(-len(files) // _FILES_A_TASK), 1)
    return frame_of(spark, listed).repartition(tasks, "path").mapInArrow(_read_files, FORMATS["text"])


def _read_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: read its files, some megabytes at a time."""
    for batch in batches:
        paths: list[str] = []
        contents: list[bytes] = []
        waiting = 0
        for path, file in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            paths.append(path)
            contents.append(Path(file).read_bytes())
            waiting += len(contents[-1])
            if waiting >= _BATCH_BYTES:
                yield _record_batch(paths, contents)
                paths, contents, waiting = [], [], 0
        if paths:
            yield _record_batch(paths, contents)


def _unpack_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: replace the content of .gz files by what they hold."""
    for batch in batches:
        paths, contents = (column.to_pylist() for column in batch.columns)
        yield _record_batch(paths, list(map(_unpacked, paths, contents)))


def _unpacked(path: str, packed: bytes) -> bytes:
    try:
        return gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{path} cannot be unpacked: {error}; get the file again.") from None


def _record_batch(paths: list[str], contents: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"path": pa.array(paths, pa.string()), "content": pa.array(contents, pa.binary())})


def _read_remote(spark: SparkSession, name: str, config: SourceConfig) -> tuple[DataFrame, int]:
    try:
        files = (spark.read.format("binaryFile").option("recursiveFileLookup", "true").option("pathGlobFilter", config.pattern)
                 .load(config.path))
        if config.format == "images":
            files = files.where(sf.lower("path").rlike(f"({'|'.join(ending.replace('.', '[.]') for ending in IMAGE_ENDINGS)})$"))
        rows = files.select("path").count()
    except SPARK_ERRORS as error:
        raise SourceError(f"source {name}: Spark cannot read {config.path}: {reason(error)}; correct prepare.sources.{name}.") from None
    root = urlparse(config.path).path.rstrip("/") + "/"  # Spark may write scheme and host in another form
    return files.select(sf.regexp_replace("path", rf"^.*?\Q{root}\E", "").alias("path"), "content"), rows


def _folder_of(path: str) -> Column:
    return sf.try_element_at(sf.split(path, "/"), sf.lit(-2))
