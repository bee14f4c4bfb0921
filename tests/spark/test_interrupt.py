"""Ctrl-C in every moment of a command that uses Spark: one line, exit code 130, and nothing left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from harness.datasets import write_dataset
from tests.support.configs import MINIMAL, write
from tests.support.training import await_condition

ROWS = 300_000
JAVAS_OWN = ("WARNING: Using incubator modules", "WARNING: package sun.")


@pytest.fixture
def config(tmp_path: Path) -> str:
    with (tmp_path / "trips.csv").open("w", encoding="ascii") as file:
        file.write("id,late,day,km\n")
        file.writelines(f"{row},{row % 2},2013-{9 + row % 3:02d}-02 00:00:00,{row % 97}\n" for row in range(ROWS))
    prepare = MINIMAL["prepare"] | {"sources": {"trips": MINIMAL["prepare"]["sources"]["trips"] | {"path": str(tmp_path / "trips.csv")}}}
    return write(tmp_path, "tiny.yaml", MINIMAL | {"workspace": str(tmp_path / "w"), "prepare": prepare, "spark": {"master": "local[2]"}})


class _Command:
    """A command that runs, and what can be seen of it from outside."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        self.process, self._said = process, said

    def jvm(self) -> psutil.Process | None:
        """Spark's; not the one that only prints its version, and not the one that only computes a command line."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):  # it has ended
                if child.name() == "java" and "org.apache.spark.deploy.SparkSubmit" in child.cmdline():
                    return child
        return None

    def num_ports(self) -> int:
        """On which the JVM listens: PySpark's gateway, then the driver's, which a SparkContext that is being made opens."""
        jvm = self.jvm()
        return 0 if jvm is None else sum(port.status == psutil.CONN_LISTEN for port in jvm.net_connections(kind="inet"))

    def reads(self, name: str) -> bool:
        """Whether the JVM has the file open."""
        jvm = self.jvm()
        return jvm is not None and any(file.path.endswith(name) for file in jvm.open_files())

    def end(self, expected: int) -> list[str]:
        """Wait for its end, and for that of all processes that it has started; returns its lines."""
        family = self._family
        self.process.wait(60)
        await_condition(lambda: not any(process.is_running() for process in family), "the end of the JVM")
        lines = [line for line in self._said.read_text(encoding="utf-8").splitlines() if not line.startswith(JAVAS_OWN)]
        assert self.process.returncode == expected, lines
        return lines

    def signalled(self, number: int) -> _Command:
        """Send it a signal, as ``kill`` does."""
        self._family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(number)
        return self

    def without_jvm(self) -> _Command:
        """Kill its JVM."""
        self._family = psutil.Process(self.process.pid).children(recursive=True)
        jvm = self.jvm()
        assert jvm is not None
        jvm.kill()
        return self


@contextmanager
def _running(tmp_path: Path, *arguments: str) -> Iterator[_Command]:
    said = tmp_path / "said.txt"
    command = ["env", "--default-signal=INT", sys.executable, "-m", "sparkring", *arguments]
    with said.open("w", encoding="utf-8") as file, subprocess.Popen(command, stderr=file, process_group=0) as process:
        try:
            yield _Command(process, said)
        finally:
            process.kill()


MOMENTS: dict[str, Callable[[_Command, Path], object]] = {
    "the JVM starts": lambda command, _: command.jvm(),
    "a SparkContext starts": lambda command, _: command.num_ports() >= 2,
    "reading": lambda command, _: command.reads("trips.csv"),
    "writing": lambda _, folder: list((folder / "w/dataset/data").glob("*/*")),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_prepare_ends_with_one_line_and_130(config: str, tmp_path: Path, moment: str) -> None:
    with _running(tmp_path, "prepare", config) as command:
        await_condition(lambda: MOMENTS[moment](command, tmp_path), moment)
        lines = command.signalled(signal.SIGINT).end(130)
    assert lines[0] == "prepare ..."
    assert lines[-2].startswith("prepare: stopped after "), lines
    assert lines[-1] == "interrupted", lines
    assert all(line.startswith("prepare: ") for line in lines[1:-1]), lines
    assert not list((tmp_path / "w/dataset/data").glob("*"))


def test_train_whose_session_is_being_started_ends_without_a_ring(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset", ([400, 300], [500]))
    with _running(tmp_path, "train", "local/flights", "--set", f"dataset_url={dataset.url}", "--set", f"workspace={tmp_path / 'w'}",
                  "--set", "spark.master=local[2]") as command:
        await_condition(command.jvm, "the start of the JVM")
        lines = command.signalled(signal.SIGINT).end(130)
    assert lines[-1] == "interrupted", lines
    assert not list((tmp_path / "w").rglob("events/*"))


def test_a_jvm_that_is_killed_while_it_starts_is_named(config: str, tmp_path: Path) -> None:
    with _running(tmp_path, "prepare", config) as command:
        await_condition(lambda: command.num_ports() >= 2, "the start of a SparkContext")
        lines = command.without_jvm().end(2)
    assert lines[-2].startswith("prepare: failed after "), lines
    assert lines[-1].startswith("error: no Spark session on local[2]: its JVM ended while it started; see what it printed, "), lines
