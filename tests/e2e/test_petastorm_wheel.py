"""Petastorm's own tests in its mended wheel: as many pass on the newest pyarrow and NumPy as on the oldest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.nightly
@pytest.mark.timeout(10_000)
def test_as_many_of_petastorm_s_tests_pass_on_the_newest_arrow_as_on_14() -> None:
    ended = subprocess.run([sys.executable, "-m", "benchmarks.petastorm"], cwd=ROOT, capture_output=True, text=True, timeout=9_900,
                           check=True)
    figures = json.loads(ended.stdout.splitlines()[-1])
    assert figures["passed_newest"] >= figures["passed_14"] > 300, figures
