"""``sparkring plan`` on paper: the table, the section to paste, the picture; and what it refuses. No Spark, no ranks."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from sparkring import __main__ as cli
from sparkring.conf.schema import TrainConfig
from tests.support.configs import MINIMAL, write
from tests.support.datasets import write_dataset

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``sparkring plan`` in this process; returns exit code, stdout and stderr."""
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sparkring", "plan", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A config whose dataset is there."""
    write_dataset(tmp_path / "workspace/dataset", [[64]])
    return write(tmp_path, "tiny.yaml", MINIMAL | {"workspace": str(tmp_path / "workspace")})


def test_on_paper_it_ranks_layouts_and_draws_how_they_scale(run: Run, config: str, tmp_path: Path) -> None:
    picture = tmp_path / "scaling.svg"
    code, out, _ = run(config, "--world", "8", "--link", "25Gb", "--device", "K80", "--picture", str(picture), "--json")
    assert code == 0
    result = json.loads(out)
    seconds = [row["step_s"] for row in result["rows"] if row["step_s"] is not None]
    assert seconds == sorted(seconds)
    assert result["tried"] > len(seconds) > 5
    assert {row["num_ranks"] for row in result["rows"]} == {1, 2, 4, 8}
    assert any("25 Gbit/s" in line for line in result["assumptions"])
    TrainConfig.model_validate(yaml.safe_load(result["suggestion"])["train"])
    root = ET.fromstring(picture.read_text(encoding="utf-8"))
    assert root.tag.endswith("svg")
    assert "8 ranks: " in root.attrib["aria-label"]


def test_for_people_it_says_what_it_took_for_granted_and_what_to_paste(run: Run, config: str, tmp_path: Path) -> None:
    code, out, _ = run(config, "--world", "2", "--picture", str(tmp_path / "x.svg"))
    assert code == 0
    first = out.splitlines()[2]
    assert " wins: " in first or " win: " in first
    assert "taken for granted:" in out
    assert "to take the best, put into the config:\n  train:\n    num_ranks: " in out


@pytest.mark.parametrize(("arguments", "complaint"), [
    pytest.param(("--link", "25Gb"), "--link without --world", id="a link of no machine"),
    pytest.param(("--world", "8", "--device", "abacus"), "'abacus' are not known", id="an unknown device"),
    pytest.param(("--world", "8", "--link", "fast"), "a link of 'fast'", id="a link of no speed"),
    pytest.param(("--world", "0"), "--world 0", id="no rank"),
    pytest.param(("--set", "train.ring.device=cuda"), "only ranks on CPUs are measured", id="measuring GPUs"),
])
def test_what_cannot_be_planned_is_refused_in_one_line(run: Run, config: str, arguments: tuple[str, ...], complaint: str) -> None:
    code, out, err = run(config, *arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert complaint in err


def test_without_a_dataset_it_says_how_to_make_one(run: Run, tmp_path: Path) -> None:
    config = write(tmp_path, "tiny.yaml", MINIMAL | {"workspace": str(tmp_path / "nothing")})
    code, _, err = run(config, "--world", "2")
    assert code == 2
    assert "sparkring prepare" in err
