"""The first line of a CSV that has not as many values as the header, found without Spark, once Spark's reader has failed.

Spark names the file at most. Like it, this reads each line on its own unless ``across_lines``, skips blank lines, takes a
quote at the beginning of a value as the beginning of a quoted one, and two quotes inside it as one.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sparkring.conf.schema import SourceConfig

ONLY_SPARK_READS = (".deflate", ".lz4", ".snappy", ".zst")
"""Endings of packed files that are not opened here."""
NAME_EACH = "give each column one name of its own, the same in all files, or leave it out (pandas its index by index=False)"
_LONGEST_SHOWN = 60


class BadLine(NamedTuple):
    """A line of a CSV, by its number from 1."""

    file: Path
    number: int
    values: list[str]
    header: list[str]
    text: str
    """The line, or the first one of a row that spans several."""
    of_header: str = ""
    """What is the matter with it, if it is a header."""

    @property
    def shown(self) -> str:
        """What is the matter with it."""
        text = self.text if len(self.text) <= _LONGEST_SHOWN else self.text[:_LONGEST_SHOWN] + " ..."
        if self.of_header:
            return f"the header of {self.file} {self.of_header}: {text!r}"
        return f"line {self.number} of {self.file} has {len(self.values)} values, and the header has {len(self.header)}: {text!r}"

    @property
    def remedy(self) -> str:
        """What to do."""
        if self.breaks_off:
            return "set multi_line: true, since a value in quotes holds a line break, or correct the line"
        return NAME_EACH if self.of_header else "correct the line, or put values that hold the separator into quotes"

    @property
    def breaks_off(self) -> bool:
        """Whether a quoted value does not end on the line."""
        return self.text.count('"') % 2 == 1


def across_lines(config: SourceConfig) -> bool:
    """Whether rows are read across line ends; in UTF-16 always, where Spark's search for the byte of a line end cuts characters."""
    return config.multi_line or config.encoding == "UTF-16"


def open_unpacked(file: Path) -> gzip.GzipFile | bz2.BZ2File | io.BufferedReader:
    """The bytes of a file, unpacked if its name says that it is packed."""
    match file.suffix:
        case ".gz":
            return gzip.GzipFile(file)
        case ".bz2":
            return bz2.BZ2File(file)
    return file.open("rb")


def first_bad_line(files: Iterable[Path], config: SourceConfig) -> BadLine | None:
    """Find the first line that does not fit the header of its file, or a header that is not the first file's or that Spark refuses.

    Args:
        files: The local files of a source, in order.
        config: The source; its format is csv.
    Returns:
        The line; None if all fit, or a file cannot be read here.
    """
    try:
        return _first(files, config)
    except (OSError, EOFError, zlib.error, csv.Error):  # a file is gone or damaged, or a value is larger than Python's csv takes
        return None


def _first(files: Iterable[Path], config: SourceConfig) -> BadLine | None:
    wanted: list[str] | None = None
    for file in files:
        if file.suffix in ONLY_SPARK_READS:
            return None
        lines = _rows(file, config)
        number, header, text = next(lines, (1, [], ""))
        if wanted is not None and header and header != wanted:
            return BadLine(file, number, header, wanted, text, of_header="is not that of the other files")
        if problem := name_refused(header):
            return BadLine(file, number, header, header, text, of_header=problem)
        wanted = wanted or header
        for number, values, text in lines:
            if len(values) != len(header):
                return BadLine(file, number, values, header, text)
    return None


def name_refused(header: Sequence[str]) -> str:
    """Why Spark, which makes up names for columns without one and for those that it does not tell apart, refuses a header; empty if not."""
    lower = [name.lower() for name in header]
    for place, name in enumerate(lower, start=1):
        if not name:
            return f"has no name for column {place}"
        if lower.count(name) > 1:
            return f"has {lower.count(name)} columns {header[place - 1]}, whose capitals Spark ignores"
    return ""


def _rows(file: Path, config: SourceConfig) -> Iterator[tuple[int, list[str], str]]:
    """Number, values and text of each line that is not blank; of a row that spans lines, those of its first line."""
    encoding = "utf-8-sig" if config.encoding == "UTF-8" else config.encoding
    across = across_lines(config)
    with io.TextIOWrapper(open_unpacked(file), encoding=encoding, errors="replace", newline="" if across else None) as opened:
        if across:
            yield from _rows_across_lines(opened, config.separator)
            return
        for number, line in enumerate(opened, start=1):
            text = line.rstrip("\n")
            if text.strip():
                values = next(csv.reader([text], delimiter=config.separator)) if '"' in text else text.split(config.separator)
                yield number, values, text


def _rows_across_lines(opened: Iterable[str], separator: str) -> Iterator[tuple[int, list[str], str]]:
    read: list[str] = []

    def remembered() -> Iterator[str]:
        for line in opened:
            read.append(line)
            yield line

    reader, number = csv.reader(remembered(), delimiter=separator), 1
    for values in reader:
        if values:
            yield number, values, read[0].rstrip("\r\n")
        number = reader.line_num + 1
        read.clear()
