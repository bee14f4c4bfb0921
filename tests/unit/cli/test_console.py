"""Progress as people see it: bars on a terminal, sparse lines in a log."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from sparkring.cli.terminal.console import LINE_EVERY_S, PlainProgress, TerminalProgress
from sparkring.spark_jobs.spark.progress import Progress


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def plain() -> tuple[Progress, Callable[[], str], Clock]:
    stream, clock = io.StringIO(), Clock()
    return PlainProgress(stream, clock=clock), stream.getvalue, clock


def terminal() -> tuple[Progress, Callable[[], str]]:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, color_system=None)
    return TerminalProgress(console), stream.getvalue


def drawn(text: str) -> list[str]:
    """The lines that hold a bar."""
    return [line for line in text.splitlines() if "%" in line]


def test_a_log_gets_a_line_at_the_start_and_one_at_the_end() -> None:
    progress, text, clock = plain()
    with progress.stage("train", total=10):
        clock.now = 2.5
    assert text().splitlines() == ["train ...", "train: done in 2.5 s"]


def test_a_log_gets_at_most_one_line_in_a_few_seconds_however_often_the_job_reports() -> None:
    progress, text, clock = plain()
    with progress.stage("train", total=1000) as bar:
        for step in range(1000):
            clock.now = step * 0.01  # ten seconds in all
            bar.update(step, text=f"step {step}")
    middle = text().splitlines()[1:-1]
    assert middle == [f"train: {100 * step // 1000}% ({step}/1000) step {step}" for step in [500]]
    assert LINE_EVERY_S == 5


def test_a_log_shows_the_count_alone_where_the_total_is_not_known() -> None:
    progress, text, clock = plain()
    with progress.stage("read") as bar:
        clock.now = 6.0
        bar.update(42)
        clock.now = 12.0
        bar.update(50, total=200, text="rows")
    assert text().splitlines()[1:-1] == ["read: 42", "read: 25% (50/200) rows"]


def test_a_log_says_what_failed_and_the_error_goes_on() -> None:
    progress, text, clock = plain()
    with pytest.raises(ZeroDivisionError), progress.stage("score"):
        clock.now = 1.0
        raise ZeroDivisionError
    assert text().splitlines() == ["score ...", "score: failed after 1.0 s"]


def test_a_log_holds_no_control_characters() -> None:
    progress, text, clock = plain()
    with progress.stage("[bold]odd[/] title", total=1) as bar:
        clock.now = 9.0
        bar.update(1, text="[red]x")
    assert text().replace("\n", "").isprintable()
    assert "[bold]odd[/] title: 100% (1/1) [red]x" in text()


def test_a_terminal_gets_a_bar_that_ends_full_and_keeps_its_text() -> None:
    progress, text = terminal()
    with progress.stage("train", total=4) as bar:
        bar.update(1, text="loss 0.41")
    last = drawn(text())[-1]
    assert "train" in last
    assert "100%" in last
    assert "loss 0.41" in last


def test_a_terminal_keeps_the_bars_of_stages_that_ended_and_notes_between_them() -> None:
    progress, text = terminal()
    with progress.stage("one"):
        pass
    progress.note("version 3 is reused [see runs/]")
    with progress.stage("two", total=7), progress.stage("three"):
        pass
    after = text()[text().rindex("reused"):]
    assert "version 3 is reused [see runs/]" in text()
    assert "two" in after
    assert "three" in after
    assert "one" not in after


def test_a_terminal_leaves_a_failed_bar_where_it_was() -> None:
    progress, text = terminal()
    with pytest.raises(KeyboardInterrupt), progress.stage("train", total=4) as bar:
        bar.update(2)
        raise KeyboardInterrupt
    assert "100%" not in text()
    assert "50%" in drawn(text())[-1]
