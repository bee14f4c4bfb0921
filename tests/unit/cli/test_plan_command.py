"""``sparkring plan`` on paper: the table, the section to paste, the picture; and what it refuses. No Spark, no ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
import yaml

from harness.datasets import write_dataset
from harness.image_dataset import write_image_dataset
from sparkring.conf.schema import Config, TrainConfig
from tests.support.configs import MINIMAL, write

if TYPE_CHECKING:
    from tests.support.command_line import Run

pytest_plugins = ["tests.support.command_line"]


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A config whose dataset is there."""
    write_dataset(tmp_path / "workspace/dataset", [[64]])
    return write(tmp_path, "tiny.yaml", MINIMAL | {"workspace": str(tmp_path / "workspace")})


def test_on_paper_it_ranks_layouts_and_draws_how_they_scale(run: Run, config: str, tmp_path: Path) -> None:
    picture = tmp_path / "not/there/scaling.svg"
    code, out, _ = run("plan", config, "--world", "8", "--link", "25Gb", "--device", "K80", "--picture", str(picture), "--json")
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


@pytest.mark.parametrize(("picture", "said"), [("tiny.yaml/x.svg", "File exists"), ("workspace", "it is a folder")])
def test_a_picture_that_cannot_be_written_is_refused(run: Run, config: str, tmp_path: Path, picture: str, said: str) -> None:
    code, _, err = run("plan", config, "--world", "2", "--picture", str(tmp_path / picture))
    assert (code, f"{picture} cannot be written: {said}; name a file in a folder" in err) == (2, True), err


@pytest.mark.parametrize("train", [
    pytest.param({"lanes": 9}, id="lanes"), pytest.param({"parallel": {"auto": True, "micro_batches": 5}}, id="micro-batches beside auto")])
def test_what_is_suggested_fits_what_the_config_has_settled(run: Run, config: str, tmp_path: Path, train: dict[str, object]) -> None:
    arguments = ["plan", config, "--world", "4", "--picture", str(tmp_path / "x.svg"), "--json", "--set", "train.batch_rows=90"]
    free = json.loads(run(*arguments)[1])
    (key, value), = train.items()
    settled = json.loads(run(*arguments, "--set", f"train.{key}={json.dumps(value)}")[1])
    TrainConfig.model_validate({"batch_rows": 90, **train, **yaml.safe_load(settled["suggestion"])["train"]})
    assert settled["tried"] < free["tried"]
    counts = {row["micro_batches"] for row in settled["rows"]}
    assert max(counts) <= 9 if "lanes" in train else counts == {5}


def test_for_people_it_says_what_it_took_for_granted_and_what_to_paste(run: Run, config: str, tmp_path: Path) -> None:
    code, out, _ = run("plan", config, "--world", "2", "--picture", str(tmp_path / "x.svg"))
    assert code == 0
    first = out.splitlines()[2]
    assert " wins: " in first or " win: " in first
    assert "assumptions:" in out
    assert "to use the best, put into the config:\n  train:\n    num_ranks: " in out


def test_each_layout_stands_there_with_its_seconds_and_the_memory_of_every_stage(run: Run, config: str, tmp_path: Path) -> None:
    arguments = ("plan", config, "--world", "4", "--picture", str(tmp_path / "x.svg"), "--set", "model.hidden=[400, 50, 10]")
    table = run(*arguments)[1].splitlines()[1:]
    rows = json.loads(run(*arguments, "--json")[1])["rows"]
    assert "GB a rank, by stage" in table[0]
    for line, row in zip(table[1:], rows[:12], strict=False):
        memory = re.escape(" ".join(f"{size:.3g}" for size in row["memory_gb"]))
        words = re.escape(f"{row['layout']}: {row['reason']}")
        assert re.fullmatch(rf" +(-|\S+ m?s) +{memory} +{row['micro_batches']}  {words}", line), line
    assert any(len(set(row["memory_gb"])) > 1 for row in rows[:12]), "the control: stages of one layout take unequal memory"


def test_what_is_suggested_fits_a_config_whose_network_normalises_over_micro_batches(run: Run, tmp_path: Path) -> None:
    write_image_dataset(tmp_path / "workspace/dataset", (64,))
    values = MINIMAL | {"workspace": str(tmp_path / "workspace"), "model": {"kind": "image", "widths": [4, 8], "norm": "batch"},
                        "train": {"parallel": {"micro_batches": 4}}}
    config = write(tmp_path, "images.yaml", values)
    code, out, _ = run("plan", config, "--world", "2", "--picture", str(tmp_path / "x.svg"), "--json")
    assert code == 0
    result = json.loads(out)
    assert any("changing train.parallel.micro_batches changes the training" in line for line in result["assumptions"])
    suggested = values | yaml.safe_load(result["suggestion"])
    assert Config.model_validate(suggested).train.parallel.micro_batches
    with pytest.raises(ValueError, match=r"set train\.parallel\.micro_batches"):
        Config.model_validate(values | {"train": {"num_ranks": 1}})


@pytest.mark.parametrize(("arguments", "complaint"), [
    pytest.param(("--link", "25Gb"), "--link without --world", id="a link of no machine"),
    pytest.param(("--world", "8", "--device", "abacus"), "'abacus' are not known", id="an unknown device"),
    pytest.param(("--world", "8", "--link", "fast"), "a link of 'fast'", id="a link of no speed"),
    pytest.param(("--world", "0"), "--world 0", id="no rank"),
])
def test_what_cannot_be_planned_is_refused_in_one_line(run: Run, config: str, arguments: tuple[str, ...], complaint: str) -> None:
    code, out, err = run("plan", config, *arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert complaint in err


def test_without_a_dataset_it_says_how_to_make_one(run: Run, tmp_path: Path) -> None:
    config = write(tmp_path, "tiny.yaml", MINIMAL | {"workspace": str(tmp_path / "nothing")})
    code, _, err = run("plan", config, "--world", "2")
    assert code == 2
    assert "sparkring prepare" in err
