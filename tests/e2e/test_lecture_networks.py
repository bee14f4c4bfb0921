"""Networks of the lectures on real data, by the commands of a user on two ranks: how many of the test rows they recognise.

The bars are fixed; optimizer, rate and changes of images are the shipped configs'. Minutes each, so they run with the nightly tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sparkring.conf.loading import load_config
from sparkring.conf.schema import Config
from tests.support.training import events_of

FASHION = Path("/usr/share/datasets/fashion-mnist")
needs_fashion = pytest.mark.skipif(not FASHION.is_dir(), reason="needs Debian's package dataset-fashion-mnist")

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3500)]


def _trained(name: str, folder: Path) -> Config:
    """Prepare, train and evaluate a shipped config."""
    overrides = [f"workspace={folder / 'job'}", "run=first"]
    config = load_config(name, overrides)
    for command in ("prepare", "train", "evaluate"):
        given = [argument for override in overrides for argument in ("--set", override)]
        ended = subprocess.run([sys.executable, "-m", "sparkring", command, name, *given], cwd=folder, capture_output=True, text=True,
                               timeout=3000, check=False)
        assert ended.returncode == 0, ended.stderr[-4000:]
    return config


@pytest.mark.parametrize(("name", "epochs", "test_rows", "least"), [
    pytest.param("local/fashion-lenet", 5, 10_000, 0.90, id="LeNet-5 on Fashion-MNIST", marks=needs_fashion),
    pytest.param("local/fashion-resnet", 20, 10_000, 0.92, id="a residual network on Fashion-MNIST", marks=needs_fashion),
    pytest.param("local/digits", 60, 300, 0.97, id="a perceptron with dropout on digits")])
def test_two_ranks_reach_the_accuracy_of_the_lectures(tmp_path: Path, name: str, epochs: int, test_rows: int, least: float) -> None:
    config = _trained(name, tmp_path)
    assert {record["size"] for record in events_of(config, "start")} == {2}
    assert len(events_of(config, "epoch")) <= epochs
    found = json.loads(Path(config.run_url.removeprefix("file://"), "evaluation.json").read_text(encoding="utf-8"))["network"]
    assert found["rows"] >= test_rows
    assert found["accuracy"] >= least
