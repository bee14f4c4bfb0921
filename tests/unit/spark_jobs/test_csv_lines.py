"""The first line of a CSV that does not fit its header is found as Spark's reader counts values."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path
from typing import Any

import pytest

from sparkring.conf.schema import SourceConfig
from sparkring.spark_jobs.etl.sources.csv_lines import BadLine, first_bad_line


def _first(folder: Path, *texts: str, encoding: str = "UTF-8", **settings: Any) -> BadLine | None:
    files = [folder / f"{number}.csv" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_bytes(text.encode(encoding))
    config = SourceConfig(path=str(folder), columns={"a": "int"}, encoding=encoding, **settings)
    return first_bad_line(files, config)


@pytest.mark.parametrize(("text", "line", "values"), [
    pytest.param("a,b\n1,2\n3\n4\n", 3, 1, id="too few values"),
    pytest.param("a,b\n\n  \n1,2,3\n", 4, 3, id="too many values, after blank lines"),
    pytest.param("a,b\r\n1,2\r\n3\r\n", 3, 1, id="line ends of Windows"),
    pytest.param("a,b\r1,2\r3\r", 3, 1, id="line ends of old Macs"),
    pytest.param('a,b\n"1,2",3\n"x ""y"", z",1\n5,x "y, z" k\n', 4, 3, id="quotes inside a value"),
    pytest.param('a,b\n1,2\n"x\ny",3\n', 3, 1, id="a line break in quotes")])
def test_the_first_line_of_another_number_of_values_is_found(tmp_path: Path, text: str, line: int, values: int) -> None:
    found = _first(tmp_path, text)
    assert found is not None
    assert (found.number, len(found.values), len(found.header)) == (line, values, 2)
    assert found.shown.startswith(f"line {line} of {tmp_path / '0.csv'} has {values} values, and the header has 2: ")


def test_a_file_whose_lines_all_fit_has_none(tmp_path: Path) -> None:
    assert _first(tmp_path, 'a,b\n1,\n"2,3","4 ""5"""\n\n', "a,b\n6,7\n") is None


def test_separator_encoding_and_line_breaks_in_quotes_are_the_config_s(tmp_path: Path) -> None:
    assert _first(tmp_path, "a;b\n1,5;2\n", separator=";") is None
    assert _first(tmp_path, "a\tb\n1\t2\t3\n", separator="\t") is not None
    umlaut = "a,b\nZ\N{LATIN SMALL LETTER U WITH DIAERESIS}rich,2\n"
    assert _first(tmp_path, umlaut + "3\n", encoding="UTF-16") == _first(tmp_path, umlaut + "3\n", encoding="ISO-8859-1")
    across = 'a,b\n"x\n\ny",1\n\n'
    assert _first(tmp_path, across, multi_line=True) is None
    found = _first(tmp_path, across + '"p\nq",1,2\n', multi_line=True)
    assert found is not None
    assert (found.number, found.text) == (6, '"p')


def test_a_value_that_breaks_off_at_the_end_of_the_line_is_told_from_others(tmp_path: Path) -> None:
    broken, short = _first(tmp_path, 'a,b\n"x\ny",3\n'), _first(tmp_path, "a,b\n1\n")
    assert broken is not None
    assert short is not None
    assert (broken.breaks_off, short.breaks_off) == (True, False)


def test_a_file_with_another_header_is_named(tmp_path: Path) -> None:
    found = _first(tmp_path, "a,b\n1,2\n", "a,c\n1,2\n")
    assert found is not None
    assert found.shown == f"the header of {tmp_path / '1.csv'} is not that of the other files: 'a,c'"


@pytest.mark.parametrize(("header", "shown"), [
    pytest.param(",a", "has no name for column 1: ',a'", id="an index of pandas"),
    pytest.param('a,b,"A"', """has 2 columns a, whose capitals Spark ignores: 'a,b,"A"'""", id="capitals")])
def test_a_header_that_spark_refuses_is_named(tmp_path: Path, header: str, shown: str) -> None:
    found = _first(tmp_path, f"{header}\n1,2,3\n")
    assert found is not None
    assert found.shown == f"the header of {tmp_path / '0.csv'} {shown}"
    assert found.remedy.startswith("give each column one name of its own")


def test_a_packed_file_is_unpacked_or_has_no_line(tmp_path: Path) -> None:
    config, lines = SourceConfig(path=str(tmp_path), columns={"a": "int"}), b"a,b\n1,2\n3\n"
    for name, content in (("a.csv.gz", gzip.compress(lines)), ("a.csv.bz2", bz2.compress(lines))):
        (tmp_path / name).write_bytes(content)
        found = first_bad_line([tmp_path / name], config)
        assert found is not None
        assert found.shown == f"line 3 of {tmp_path / name} has 1 values, and the header has 2: '3'"
    for name, content in (("a.csv.zst", lines), ("cut_off.csv.gz", gzip.compress(b"a,b\n" + b"1,2\n" * 99)[:-12])):
        (tmp_path / name).write_bytes(content)
        assert first_bad_line([tmp_path / name], config) is None


def test_in_utf_16_values_may_hold_line_breaks_as_spark_reads_it(tmp_path: Path) -> None:
    assert _first(tmp_path, 'a,b\n"x\ny",1\n', encoding="UTF-16") is None


def test_a_file_that_is_gone_has_no_line(tmp_path: Path) -> None:
    assert first_bad_line([tmp_path / "gone.csv"], SourceConfig(path=str(tmp_path), columns={"a": "int"})) is None
