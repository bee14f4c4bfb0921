"""The main job as a newcomer runs it, on a year of real flights, twice; on a month of them: test_standalone_master.py."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as pa_dataset
import pytest

from sparkring.conf.loading import load_config
from tests.support.runs import only_run

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Ended:
    """A command that ended well."""

    stdout: str
    stderr: str


@dataclass(frozen=True)
class Demo:
    """The main job, called twice in one workspace."""

    workspace: Path
    run: Path
    first: Ended
    second: Ended
    evaluation: dict[str, Any]


def sparkring(*arguments: str, cwd: Path) -> Ended:
    ended = subprocess.run([sys.executable, "-m", "sparkring", *arguments], cwd=cwd, capture_output=True, text=True, timeout=600,
                           check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return Ended(ended.stdout, ended.stderr)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder = tmp_path_factory.mktemp("demo")
    first = sparkring("demo", cwd=folder)
    second = sparkring("demo", cwd=folder)
    workspace = folder / "runs" / "flights"
    run = only_run(workspace)
    return Demo(workspace, run, first, second, json.loads((run / "evaluation.json").read_text(encoding="utf-8")))


def test_the_network_beats_logistic_regression_which_beats_the_base_rate(demo: Demo) -> None:
    models = demo.evaluation
    assert models["network"]["auc"] > models["logistic_regression"]["auc"] > models["base_rate"]["auc"]
    assert models["network"]["loss"] < models["logistic_regression"]["loss"] < models["base_rate"]["loss"]
    assert models["network"]["average_precision"] > models["logistic_regression"]["average_precision"]


def test_it_ends_by_saying_where_everything_lies(demo: Demo) -> None:
    places = dict(re.findall(r"^  (dataset|model|scores|report) +(\S+)", demo.first.stdout, flags=re.MULTILINE))
    assert places.keys() == {"dataset", "model", "scores", "report"}
    for place in places.values():
        assert Path(place.removeprefix("file://")).exists(), place
        assert str(demo.workspace) in place


def test_every_test_flight_has_a_score(demo: Demo) -> None:
    rows = pa_dataset.dataset(demo.run / "scores", format="parquet").count_rows()
    assert rows == demo.evaluation["network"]["rows"] > 40_000


def test_the_report_is_one_page_that_loads_nothing_from_elsewhere(demo: Demo) -> None:
    page = (demo.run / "report.html").read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", page)


def test_each_step_shows_how_far_it_is(demo: Demo) -> None:
    for step in ("train", "report"):
        assert re.search(rf"^{step}: done in [\d.]+ s$", demo.first.stderr, flags=re.MULTILINE), demo.first.stderr


def test_the_second_run_reuses_what_is_there_and_says_so(demo: Demo) -> None:
    reused = r"^  (\w+) +\S+.* \(reused\)$"
    assert re.findall(reused, demo.first.stdout, flags=re.MULTILINE) == []
    assert re.findall(reused, demo.second.stdout, flags=re.MULTILINE) == ["dataset", "model", "scores"]
    for step in ("prepare", "train", "evaluate", "score"):
        assert not re.search(rf"^{step}.*: done in", demo.second.stderr, flags=re.MULTILINE)


def test_the_next_command_that_it_offers_is_one_that_can_be_run(demo: Demo) -> None:
    command = shlex.split(demo.first.stdout.splitlines()[-1])
    assert command[:3] == ["sparkring", "demo", "local/flights"]
    overrides = [value for option, value in zip(command[3::2], command[4::2], strict=True) if option == "--set"]
    offered, ran = load_config("local/flights", overrides), load_config("local/flights")
    assert offered.dataset == ran.dataset
    assert offered.run not in (ran.run, demo.run.name)
