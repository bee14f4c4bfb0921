"""The table that ``sparkring doctor`` shows on a terminal."""

from __future__ import annotations

from rich.console import Console

from sparkring.cli.doctor import table_of
from sparkring.spark_jobs.doctor import Check


def test_words_in_brackets_are_shown_as_they_are() -> None:
    console = Console(width=200, color_system=None)
    with console.capture() as shown:
        console.print(table_of([Check("torch", "fail", "none in [/opt/env]", "pip install 'sparkring[train]'")]))
    (line,) = [line for line in shown.get().splitlines() if "torch" in line]
    assert [cell.strip() for cell in line.split("  ") if cell.strip()] == [
        "fail", "torch", "none in [/opt/env]", "pip install 'sparkring[train]'"]
