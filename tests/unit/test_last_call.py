"""A task whose executor goes: its rank is asked to save, and gets so much time and no more."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TASK = """
import signal, sys, threading
from sparkring.spark_jobs.launch.last_call import last_call

saved = threading.Event()
grace_s, answers = float(sys.argv[1]), sys.argv[2] == "answers"
before = signal.getsignal(signal.SIGHUP)  # nohup ignores it
def ask():
    print("asked", flush=True)
    if answers:
        saved.set()
with last_call(ask, grace_s=grace_s):
    print("works", flush=True)
    saved.wait(60)
assert signal.getsignal(signal.SIGHUP) == before
print("saved", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
@pytest.mark.parametrize(("rank", "grace_s", "said", "code"), [
    pytest.param("answers", 60, "asked\nsaved\n", 0, id="a rank that saves"),
    pytest.param("is silent", 0.1, "asked\n", 1, id="a rank that does not")])
def test_a_task_that_is_hung_up_on_lets_its_rank_save(number: signal.Signals, rank: str, grace_s: float, said: str, code: int) -> None:
    with subprocess.Popen([sys.executable, "-c", TASK, str(grace_s), rank], cwd=ROOT, stdout=subprocess.PIPE, text=True) as task:
        assert task.stdout is not None
        assert task.stdout.readline() == "works\n"
        task.send_signal(number)
        task.send_signal(number)
        assert (task.communicate(timeout=60)[0], task.returncode) == (said, code)
