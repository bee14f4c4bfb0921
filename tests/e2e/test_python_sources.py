"""The shipped language models learn Python's own sources: two ranks, held-out packages, below the unigram entropy by a margin."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(("config", "margin"), [
    pytest.param("local/python-text", 0.7, id="next tokens, one epoch"),
    pytest.param("local/python-masked", 1.0, id="masked tokens, four epochs")])
def test_a_language_model_is_below_the_unigram_entropy_of_the_test_packages(config: str, margin: float, tmp_path: Path) -> None:
    """The base rate that ``evaluate`` writes is the unigram's: each token's share of the train rows' tokens."""
    found = {}
    for command in ("prepare", "train", "evaluate"):
        ended = subprocess.run([sys.executable, "-m", "sparkring", command, config, "--json", "--set", f"workspace={tmp_path / 'job'}"],
                               cwd=tmp_path, capture_output=True, text=True, timeout=1500, check=False)
        assert ended.returncode == 0, ended.stderr[-4000:]
        found[command] = json.loads(ended.stdout.splitlines()[-1])
    network, unigram = (found["evaluate"][name]["loss"] for name in ("network", "base_rate"))
    assert network < unigram - margin, found["evaluate"]
