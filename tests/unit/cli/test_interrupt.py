"""Ctrl-C: raised at once, except during a call to the JVM, which is made to return first."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkring.cli.terminal.interrupt import Interrupt
from sparkring.spark_jobs.recovery.stop import stop_on_signals
from tests.support import seams

ROOT = Path(__file__).resolve().parents[3]
COMMAND = """
import os, signal, sys, threading, types
from sparkring import __main__ as cli
from sparkring.cli import jobs
from sparkring.cli.terminal import interrupt
from sparkring.errors import SourceError

returned = threading.Event()
gateway = types.ModuleType("py4j.gateway")  # its functions are py4j's, by the name of their module
exec("def call(returned):\\n print('works', flush=True)\\n assert returned.wait(60)", gateway.__dict__)
interrupt.cancel_spark_jobs.__globals__["CANCEL_EVERY_S"] = 0.01

def prepare(*_, progress, **__):
    with progress.stage("prepare"):
        gateway.call(returned)
        print("the call returned", flush=True)  # an exception in the middle of it would have left its reply unread
        raise {error}

import sparkring.spark_jobs.prepare
sparkring.spark_jobs.prepare.prepare = prepare
cli.Interrupt = lambda: interrupt.Interrupt(cancel=returned.set)
sys.argv = ["sparkring", "prepare", "local/flights"]
cli.main()
"""


@pytest.fixture(autouse=True)
def _ctrl_c_is_heard() -> Iterator[None]:
    """As in a terminal: a shell that starts the tests in the background has them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("error", ["SourceError('Job 5 cancelled')", "RuntimeError('Job 5 cancelled')"])
def test_a_call_to_the_jvm_returns_before_the_command_ends_with_one_line(error: str) -> None:
    command = ["env", "--default-signal=INT", sys.executable, "-c", COMMAND.replace("{error}", error)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "works\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "the call returned\n")
    assert re.fullmatch(r"prepare \.\.\.\nprepare: stopped after \S+ s\ninterrupted\n", err), err


def test_while_the_commands_are_being_imported_it_ends_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("print('importing', flush=True)\nwhile True: pass\n", encoding="utf-8")
    command = ["env", "--default-signal=INT", f"PYTHONPATH={tmp_path}", sys.executable, "-m", "sparkring", "prepare"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (130, "", "interrupted\n")


def test_elsewhere_it_is_raised_at_once_and_a_second_one_always() -> None:
    interrupt = Interrupt(cancel=lambda: None)
    with interrupt.handled():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.asked
        called: dict[str, object] = {"__name__": "py4j.gateway"}
        exec("import os, signal\ndef call(): os.kill(os.getpid(), signal.SIGINT)", called)
        with pytest.raises(KeyboardInterrupt):
            called["call"]()  # type: ignore[operator]
    assert signal.getsignal(signal.SIGINT) is not interrupt._on_sigint


def test_a_call_that_does_not_return_is_interrupted_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.INTERRUPT_GRACE_S, 0.05)
    monkeypatch.setattr(seams.INTERRUPT_CANCEL_EVERY_S, 0.01)
    called: dict[str, object] = {"__name__": "py4j.gateway"}
    exec("import os, signal, time\ndef call():\n os.kill(os.getpid(), signal.SIGINT)\n time.sleep(60)", called)
    with Interrupt(cancel=lambda: None).handled(), pytest.raises(KeyboardInterrupt):
        called["call"]()  # type: ignore[operator]


def test_a_run_is_asked_to_save_first_and_a_second_ctrl_c_interrupts() -> None:
    with Interrupt(cancel=lambda: None).handled(), stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert (stop.asked, stop.reason, stop.signal_number) == (True, "Ctrl-C", signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_the_first_to_ask_is_named() -> None:
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        stop.ask("another process has taken over the run")
    assert (stop.reason, stop.signal_number) == ("SIGTERM", signal.SIGTERM)
