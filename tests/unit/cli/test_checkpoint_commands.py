"""``sparkring checkpoints list | show | verify``: what a run could go on from, and whether it is whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save

from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument, Position
from sparkring.pipelines.training.checkpoints.store import Checkpoints

if TYPE_CHECKING:
    from tests.support.command_line import Run

pytest_plugins = ["tests.support.command_line"]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A run with checkpoints after 10, 20 and 30 steps, of which the second one was judged best."""
    checkpoints = Checkpoints(str(tmp_path))
    state = save({"model/weight": torch.ones(3, 4), "optimizer/weight/step": torch.ones(1)})
    for epoch, loss in ((1, 0.5), (2, 0.25), (3, 0.75)):
        part = checkpoints.put_part(state, steps=10 * epoch, rank=0)
        checkpoints.commit(CheckpointDocument(
            position=Position(epoch=epoch, steps_done=10 * epoch), validation={"loss": loss}, content_id="c", dataset_version=1, seed=1,
            lanes=24, batch_rows=8, code_version="test", layout="2 ranks", parts=(part,)))
    return str(tmp_path)


def test_the_list_has_a_line_a_checkpoint_and_names_the_best_and_the_latest(run: Run, folder: str) -> None:
    code, out, _ = run("checkpoints", "list", folder)
    lines = out.strip().splitlines()[-3:]
    assert (code, [line.split()[0] for line in lines]) == (0, ["10", "20", "30"])
    assert [("best" in line, "latest" in line) for line in lines] == [(False, False), (True, False), (False, True)]
    told = json.loads(run("checkpoints", "list", folder, "--json")[1])
    assert [(one["steps"], one["kept_as"], one["parts"]) for one in told] == [(10, "", 1), (20, "best", 1), (30, "latest", 1)]


def test_one_is_shown_as_json_the_latest_by_default_and_one_that_is_not_there_is_refused(run: Run, folder: str) -> None:
    assert json.loads(run("checkpoints", "show", folder)[1])["position"]["steps_done"] == 30
    shown = json.loads(run("checkpoints", "show", folder, "--steps", "20")[1])
    assert (shown["validation"], shown["layout"], len(shown["parts"])) == ({"loss": 0.25}, "2 ranks", 1)
    code, out, said = run("checkpoints", "show", folder, "--steps", "25")
    assert (code, out) == (2, "")
    assert "has no checkpoint after 25 steps; it has 10, 20, 30" in said
    code, _, said = run("checkpoints", "list", f"{folder}/nowhere")
    assert code == 2
    assert "holds no checkpoint" in said


def test_a_damaged_one_is_told_by_the_exit_code_and_by_name(run: Run, folder: str) -> None:
    code, out, _ = run("checkpoints", "verify", folder)
    assert (code, out.count("whole")) == (0, 3)
    part = next(Path(folder, "checkpoints/data").glob("20-*"))
    part.write_bytes(part.read_bytes()[:-1] + b"\0")
    code, out, _ = run("checkpoints", "verify", folder, "--json")
    assert code == 1
    assert [(one["steps"], part.name in one["problem"]) for one in json.loads(out)] == [(10, False), (20, True), (30, False)]
    assert run("checkpoints", "verify", folder, "--steps", "30")[0] == 0, "the control: that one is whole"
