"""A task whose executor goes: its rank is asked to save, and gets so much time and no more."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TASK = """
import os, select, signal, sys, threading
from sparkring.spark_jobs.launch.rank.graceful_stop import graceful_stop

before = signal.getsignal(signal.SIGHUP)  # nohup ignores it
with graceful_stop(lambda: os.write(1, b"asked\\n"), grace_s=float(sys.argv[1])):
    os.write(1, b"works\\n")  # a print that a signal interrupts lets its handler print nothing
    while not select.select([0], [], [], 0.1)[0]:  # until the rank has saved
        pass  # a task polls, too: Python hears no signal that comes right before a call that blocks, until the call ends
assert signal.getsignal(signal.SIGHUP) == before
assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer) and not thread.finished.is_set()]
print("saved", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
@pytest.mark.parametrize(("grace_s", "saves", "said", "code"), [
    pytest.param(60, True, "asked\nsaved\n", 0, id="a rank that saves"),
    pytest.param(0.1, False, "asked\n", 1, id="a rank that does not")])
def test_a_task_that_is_hung_up_on_lets_its_rank_save(number: signal.Signals, grace_s: float, saves: bool, said: str, code: int) -> None:
    with subprocess.Popen([sys.executable, "-c", TASK, str(grace_s)], cwd=ROOT, text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as task:
        assert task.stdin is not None
        assert task.stdout is not None
        assert task.stdout.readline() == "works\n"
        for _ in range(300):  # one interrupts the answer to another
            task.send_signal(number)
        if saves:
            task.stdin.write("saved\n")
            task.stdin.flush()
        assert (task.wait(timeout=60), task.stdout.read()) == (code, said)
