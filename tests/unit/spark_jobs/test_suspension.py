"""A rank that no task of ours watches is ended when it was suspended for too long, and says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

RANK = """
import signal, sys
from sparkring.spark_jobs.launch.rank.suspension import guard_against_suspension
guard_against_suspension(limit_s=1.0, last_words="the end")
print("works", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize(("suspended", "code", "said"), [(True, -signal.SIGKILL, "the end\n"), (False, 0, "")])
def test_a_suspended_rank_is_ended_and_one_that_works_is_left_alone(suspended: bool, code: int, said: str) -> None:
    with subprocess.Popen([sys.executable, "-c", RANK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "works\n"
        if suspended:
            os.kill(rank.pid, signal.SIGSTOP)
            rank.wait(60)
        _, err = rank.communicate("\n" if not suspended else None, timeout=60)
    assert (rank.returncode, err) == (code, said)
