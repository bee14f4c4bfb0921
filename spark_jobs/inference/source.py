"""A table that nobody has described, as a source of the config: a file or folder, whose format its name tells, or a table of Spark's.

A CSV says neither types nor its separator nor its word for a missing value. The separator is the sign that its first line has most of;
types are inferred by Spark from all rows; a value holds a line break if the quote that opens it is not closed on its line; a word for
missing values is one of the usual ones that makes numbers of texts.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType

from sparkring.errors import SourceError
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.sources.csv_lines import NAME_EACH, name_refused
from sparkring.spark_jobs.etl.sources.literal_paths import literal
from sparkring.spark_jobs.etl.sources.local_files import is_there, reading
from sparkring.spark_jobs.spark.errors import SPARK_ERRORS, reason, rewriting
from sparkring.spark_jobs.spark.session import spark_path
from sparkring.spark_jobs.spark.versions.casts import ddl_of

_FORMATS = {".csv": "csv", ".tsv": "csv", ".txt": "csv", ".parquet": "parquet", ".json": "json", ".jsonl": "json", ".orc": "orc"}
_SEPARATORS = (",", ";", "\t", "|")
_MISSING = ("NA", "N/A", "NULL", "null", "None", "?", "\\N")


@dataclass(frozen=True)
class FoundSource:
    """A table, and how the config names it."""

    name: str
    """A name for it in SQL."""
    source: dict[str, Any]
    """``prepare.sources.<name>``."""
    rows: DataFrame


def find_source(spark: SparkSession, table: str) -> FoundSource:
    """Open a table and describe it as a source.

    Args:
        spark: The session to read with.
        table: A path or URL of a file or folder, or a table that the session knows.
    Raises:
        SourceError: there is nothing of that name, its format cannot be told, or Spark cannot read it.
    """
    with reading():
        of_files = is_there(Path(table)) or bool(urlparse(table).scheme)
    try:
        if of_files:
            return _of_files(spark, table)
        return FoundSource(_name(table), {"format": "table", "table": table}, spark.table(table))
    except SPARK_ERRORS as error:
        if of_files:
            raise SourceError(f"Spark cannot read {table}: {reason(error)}; check that it is there, and its files whole and of one format"
                              f"{rewriting(error)}.") from None
        raise SourceError(f"{table} is neither a file here nor a table that Spark can read: {reason(error)}; give a path, or a name such "
                          "as shop.orders.") from None


def _of_files(spark: SparkSession, address: str) -> FoundSource:
    local = Path(address) if is_there(Path(address)) else None
    file = next((each for each in sorted(local.rglob("*")) if _format(each.name)), local) if local and local.is_dir() else local
    name = file.name if file else address
    if name.lower().endswith(".zip"):  # Spark would read its bytes as rows
        raise SourceError(f"{name} is a zip, inside which Spark cannot look; unpack it, and name the file to read.")
    kind = _format(name)
    if kind is None:
        raise SourceError(f"the format of {address} cannot be told from its name; give a file or folder of {', '.join(sorted(_FORMATS))}, "
                          "or register it as a table of Spark's.")
    path = literal(spark_path(str(local.absolute()))) if local else address
    source: dict[str, Any] = {"path": address, "format": kind}
    if kind == "csv":
        rows, said = _csv(spark, path)
        source |= said | {"columns": {field.name: ddl_of(field.dataType) for field in rows.schema}}
    else:
        rows = spark.read.format(kind).load(path)
        if kind == "json":
            source["columns"] = {field.name: ddl_of(field.dataType) for field in rows.schema}
    return FoundSource(_name((local or Path(urlparse(address).path)).name), source, rows)


def _csv(spark: SparkSession, path: str) -> tuple[DataFrame, dict[str, str | bool]]:
    """The rows of a CSV with types, and what the config must say to read it so."""
    lines = spark.read.text(path)
    header = lines.head()
    if header is None:
        raise SourceError(f"{path} is empty; give a file with a header and rows.")
    separator = max(_SEPARATORS, key=header[0].count)
    said: dict[str, str | bool] = {} if separator == "," else {"separator": separator}
    opens_a_value, is_odd = sf.col("value").rlike(f'(^|[{separator}])"'), sf.regexp_count("value", sf.lit('"')) % 2 == 1
    if lines.where(opens_a_value & is_odd).head() is not None:
        said["multi_line"] = True

    def read(null_value: str) -> DataFrame:
        return spark.read.csv(path, header=True, sep=separator, escape='"', inferSchema=True, enforceSchema=False,
                              nullValue=null_value, multiLine=bool(said.get("multi_line")))

    rows = read("")
    _require_names(header[0], rows.columns, path, separator=separator)
    texts = [field.name for field in rows.schema if isinstance(field.dataType, StringType)]
    if not texts:
        return rows, said
    counts = rows.agg(*(sf.count_if(sf.greatest(*(named(name).eqNullSafe(word) for name in texts), sf.lit(False)))  # noqa: FBT003
                        .alias(f"_{place}") for place, word in enumerate(_MISSING))).collect()[0]
    word = max(zip(counts, _MISSING, strict=True))[1] if any(counts) else ""
    again = read(word) if word else rows
    fewer = sum(isinstance(field.dataType, StringType) for field in again.schema) < len(texts)
    return (again, said | {"null_value": word}) if fewer else (rows, said)


def _require_names(header: str, columns: Sequence[str], path: str, *, separator: str) -> None:
    """Check that Spark has taken the names of a CSV's header as they are; else it refuses that header when it reads."""
    names = next(csv.reader([header], delimiter=separator), [])
    problem = name_refused(names) if names != columns[:len(names)] and header.count('"') % 2 == 0 else ""  # odd: a name spans lines
    if problem:
        raise SourceError(f"the header of {path} {problem}; {NAME_EACH}.")


def _format(name: str) -> str | None:
    """The format that a file's name tells; ``orders.csv.gz`` is a CSV."""
    return next((_FORMATS[suffix] for suffix in reversed(Path(name).suffixes) if suffix in _FORMATS), None)


def _name(text: str) -> str:
    """A name for SQL: ``2024 orders.csv`` becomes ``t_2024_orders``."""
    stem = text.split(".", maxsplit=1)[0] if _format(text) else text.rsplit(".", maxsplit=1)[-1]  # orders.csv.gz, or the table shop.orders
    word = re.sub(r"\W+", "_", stem).strip("_").lower() or "rows"
    return word if word.isidentifier() else f"t_{word}"
