"""A first look at all sources, before Spark starts: whether their paths exist, and whether headers hold the declared columns.

Only files on this machine are looked at, and only the beginning of a CSV or the footer of a Parquet file. A header that cannot be read
here is left to Spark. Not here: types and values (tables.py).
"""

from __future__ import annotations

import csv
import io
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sparkring.conf.schema import SourceConfig, StoredTable
from sparkring.errors import SparkringError, together
from sparkring.spark_jobs.etl.sources.csv_lines import ONLY_SPARK_READS, open_unpacked
from sparkring.spark_jobs.etl.sources.declared import missing_columns
from sparkring.spark_jobs.etl.sources.tables import Source, data_files, locate

_LONGEST_HEADER = 1 << 20
_UNREADABLE = (OSError, EOFError, LookupError, RuntimeError, csv.Error, zipfile.BadZipFile, zlib.error, pa.ArrowException)
"""What Python raises for files that are damaged, empty, encrypted, or not what their name says."""


@dataclass(frozen=True)
class FirstLook:
    """What is known of the sources without Spark."""

    sources: list[Source]
    """Those whose paths exist, and those that only Spark can reach."""
    headers: dict[str, list[str]]
    """Columns by the source's name, where a header could be read."""
    problems: list[SparkringError]


def located(sources: Mapping[str, SourceConfig | StoredTable]) -> list[Source]:
    """Find the bytes of all sources.

    Raises:
        SourceError, ConfigError: paths that do not exist, names that no table can have, and headers without declared columns; all of them.
    """
    look = first_look(sources)
    if look.problems:
        raise together(look.problems)
    return look.sources


def first_look(sources: Mapping[str, SourceConfig | StoredTable]) -> FirstLook:
    """Look at all sources; problems are collected, not raised."""
    look = FirstLook([], {}, [])
    for name, config in sources.items():
        try:
            source = locate(name, config)
        except SparkringError as error:
            look.problems.append(error)
            continue
        look.sources.append(source)
        header = header_of(source)
        if header is None:
            continue
        look.headers[name] = header
        look.problems.extend(missing_columns(header, name, config))
    return look


def header_of(source: Source) -> list[str] | None:
    """The columns of a local CSV or Parquet source, by its first file; None if only Spark can tell."""
    config, place = source.config, source.local
    if place is None or not isinstance(config, SourceConfig):
        return None
    file = next(iter(data_files(place)), None) if place.is_dir() else place
    if file is None or "=" in file.relative_to(place).as_posix():  # partitions: further columns are in the names of folders
        return None
    try:
        if config.format == "parquet":
            return list(pq.read_schema(file).names)
        return _csv_header(file, config) if config.format == "csv" else None
    except _UNREADABLE:
        return None


def _csv_header(file: Path, config: SourceConfig) -> list[str] | None:
    if config.encoding == "UTF-16" or file.suffix in ONLY_SPARK_READS:
        return None
    beginning = _beginning(file)
    text = beginning.decode("utf-8-sig" if config.encoding == "UTF-8" else config.encoding, errors="replace")
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=config.separator)
    first = next((row for row in rows if len(row) > 1 or "".join(row).strip()), None)
    cut_off = len(beginning) == _LONGEST_HEADER and b"\n" not in beginning
    return None if first is None or cut_off else _as_spark_names(first, config.null_value)


def _beginning(file: Path) -> bytes:
    if file.suffix == ".zip":
        with zipfile.ZipFile(file) as archive, archive.open(archive.namelist()[0]) as member:
            return member.read(_LONGEST_HEADER)
    with open_unpacked(file) as stream:
        return stream.read(_LONGEST_HEADER)


def _as_spark_names(header: list[str], null_value: str) -> list[str]:
    """Spark numbers columns without a name, and those of one name. Source: Spark 4.1, ``CSVUtils.makeSafeHeader``."""
    times = Counter(name.lower() for name in header)
    return [f"_c{place}" if name in ("", null_value) else f"{name}{place}" if times[name.lower()] > 1 else name
            for place, name in enumerate(header)]
