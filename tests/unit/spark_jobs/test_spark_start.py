"""Ctrl-C while Spark starts: noted, and handled as before once the start has ended. That it ends the JVM: tests/spark/test_interrupt.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pyspark
import pytest

from sparkring.spark_jobs.spark.start import ctrl_c_ends_start, jvm_is_lost
from tests.support import seams
from tests.support.training import await_condition

CONTEXT = sys.modules[f"{pyspark.__name__}.context"]
"""The module in which PySpark puts its handler in place."""


def _own(*_: object) -> None:
    """A handler that raises nothing."""


def _of_pyspark(*_: object) -> None:
    """The handler of a new SparkContext."""


@pytest.fixture(autouse=True)
def _handler_put_back() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("before", "after"), [
    pytest.param(_own, _own, id="one's own"), pytest.param(signal.SIG_IGN, signal.SIG_IGN, id="ignored"),
    pytest.param(signal.default_int_handler, _of_pyspark, id="Python's default")])
def test_the_handler_of_pyspark_replaces_only_the_default_one(before: Any, after: Any) -> None:
    signal.signal(signal.SIGINT, before)
    with ctrl_c_ends_start():
        vars(CONTEXT)["signal"].signal(signal.SIGINT, _of_pyspark)
        assert signal.getsignal(signal.SIGINT) is not _of_pyspark
    assert signal.getsignal(signal.SIGINT) is after
    assert vars(CONTEXT)["signal"] is signal


def test_ctrl_c_interrupts_nothing_before_the_start_has_ended_and_hides_its_error() -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt), ctrl_c_ends_start():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        reached = True
        raise RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")
    assert reached


def test_a_handler_that_raises_nothing_is_called_once_the_start_has_ended() -> None:
    called = list[object]()
    signal.signal(signal.SIGINT, lambda number, _: called.append(number))
    with pytest.raises(KeyboardInterrupt), ctrl_c_ends_start():
        os.kill(os.getpid(), signal.SIGINT)
        assert called == []
    assert called == [signal.SIGINT]


def test_the_shell_of_a_jvm_is_ended_before_it_can_complain() -> None:
    for _ in range(8):  # in one order of two it would not
        with (pytest.raises(KeyboardInterrupt), ctrl_c_ends_start(),
              subprocess.Popen(["bash", "-c", "found=$(sleep 60); echo 'nothing found' >&2"], stderr=subprocess.PIPE,
                               env=os.environ | {"_PYSPARK_DRIVER_CONN_INFO_PATH": "of a test"}) as shell):
            await_condition(lambda: psutil.Process(shell.pid).children(), "the shell's child")
            os.kill(os.getpid(), signal.SIGINT)
            _, said = shell.communicate(timeout=20)
            assert said == b""


def test_a_start_without_a_jvm_to_end_is_interrupted_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.START_GRACE_S, 0.1)
    with pytest.raises(KeyboardInterrupt), ctrl_c_ends_start():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)  # as a client of Connect waits for its server


def test_only_an_error_of_the_connection_is_a_lost_jvm() -> None:
    assert jvm_is_lost(RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."))
    assert not jvm_is_lost(ValueError("Cannot run multiple SparkContexts at once"))
