"""Long jobs at a prompt: an interrupt is asked of the job first, and always ends as ``KeyboardInterrupt``."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import sparkring
from sparkring.errors import SourceError, Stopped
from sparkring.notebook.interactive import interactive
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.spark.progress import SILENT, Progress
from sparkring.spark_jobs.train import train


@pytest.fixture(autouse=True)
def _ctrl_c_is_heard() -> Iterator[None]:
    """As in a kernel: a shell that starts the tests in the background has them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "handlers are put back"
    signal.signal(signal.SIGINT, before)


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_job_that_can_save_is_asked_to_and_says_what_it_saved() -> None:
    def job(*, progress: Progress = SILENT, stop: StopRequest | None = None) -> None:
        press_ctrl_c()
        assert stop is not None
        assert stop.asked
        raise Stopped("saved after 7 steps", signal_number=stop.signal_number)

    with pytest.raises(KeyboardInterrupt, match="saved after 7 steps"):
        interactive(job)()


def test_a_second_interrupt_ends_it_at_once() -> None:
    def job(*, progress: Progress = SILENT, stop: StopRequest | None = None) -> None:
        press_ctrl_c()
        press_ctrl_c()
        pytest.fail("still here")

    with pytest.raises(KeyboardInterrupt):
        interactive(job)()


def test_another_job_is_interrupted_where_it_is() -> None:
    def job(*, progress: Progress = SILENT) -> None:
        press_ctrl_c()
        pytest.fail("still here")

    with pytest.raises(KeyboardInterrupt):
        interactive(job)()


def test_the_error_of_a_cancelled_job_is_an_interrupt_and_any_other_error_is_itself() -> None:
    def job(*, interrupted: bool, progress: Progress = SILENT) -> None:
        try:
            if interrupted:
                press_ctrl_c()
        finally:
            raise SourceError("Job 5 cancelled")

    with pytest.raises(KeyboardInterrupt):
        interactive(job)(interrupted=True)
    with pytest.raises(SourceError):
        interactive(job)(interrupted=False)


def test_a_job_that_others_stop_says_so_itself() -> None:
    def job(*, progress: Progress = SILENT, stop: StopRequest | None = None) -> None:
        raise Stopped("another process has taken over the run", signal_number=signal.SIGTERM)

    with pytest.raises(Stopped):
        interactive(job)()


def test_what_the_caller_gives_is_left_as_it_is() -> None:
    def job(**given: Any) -> dict[str, Any]:
        return given

    job.__signature__ = inspect.signature(train)  # type: ignore[attr-defined]
    mine = StopRequest()
    assert interactive(job)(progress=SILENT, stop=mine) == {"progress": SILENT, "stop": mine}


def test_in_a_thread_a_job_runs_without_signals_and_bars() -> None:
    def job(*, progress: Progress = SILENT, stop: StopRequest | None = None) -> StopRequest | None:
        return stop if progress is SILENT else StopRequest()

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(interactive(job)()))
    thread.start()
    thread.join(60)
    assert found == [None]


def test_a_program_gets_the_function_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrapped(function: Any) -> bool:
        return "interactive" in str(function.__wrapped__.__code__.co_filename)

    assert not wrapped(sparkring.train)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert wrapped(sparkring.train)
