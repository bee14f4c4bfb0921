"""Ctrl-C while Spark works: one line, exit code 130, and nothing left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.configs import MINIMAL, write
from tests.support.training import await_condition

ROWS = 300_000


@pytest.fixture
def config(tmp_path: Path) -> str:
    with (tmp_path / "trips.csv").open("w", encoding="ascii") as file:
        file.write("id,late,day,km\n")
        file.writelines(f"{row},{row % 2},2013-{9 + row % 3:02d}-02 00:00:00,{row % 97}\n" for row in range(ROWS))
    prepare = MINIMAL["prepare"] | {"sources": {"trips": MINIMAL["prepare"]["sources"]["trips"] | {"path": str(tmp_path / "trips.csv")}}}
    return write(tmp_path, "tiny.yaml", MINIMAL | {"workspace": str(tmp_path / "w"), "prepare": prepare, "spark": {"master": "local[2]"}})


@pytest.mark.parametrize("moment", ["reading", "writing"])
def test_prepare_ends_with_one_line_and_130(config: str, tmp_path: Path, moment: str) -> None:
    said = tmp_path / "said.txt"
    command = ["env", "--default-signal=INT", sys.executable, "-m", "sparkring", "prepare", config]
    with said.open("w", encoding="utf-8") as file, subprocess.Popen(command, stderr=file, process_group=0) as process:
        if moment == "reading":
            await_condition(lambda: "prepare ..." in said.read_text(encoding="utf-8"), "the beginning")
        else:
            await_condition(lambda: list((tmp_path / "w/dataset/data").glob("*/*")), "files of a split")
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        process.wait(60)
    lines = said.read_text(encoding="utf-8").splitlines()
    assert process.returncode == 130, lines
    assert lines[-1] == "interrupted", lines
    assert [line for line in lines[:-1] if not line.startswith(("prepare", "WARNING: Using incubator modules"))] == []  # Java's own
    assert not list((tmp_path / "w/dataset/data").glob("*"))
    await_condition(lambda: not any(child.is_running() for child in family), "the end of the JVM")
