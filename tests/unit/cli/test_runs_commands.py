"""``sparkring runs list | show | compare | remove``: the runs of a workspace, side by side."""

from __future__ import annotations

import io
import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save

from harness.datasets import write_dataset
from sparkring.conf.loading import parse_config
from sparkring.pipelines.data.stores.lease import is_leased, lease
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument, Position
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.job.job import TrainSummary
from sparkring.spark_jobs.run.folder import LOCK, RunFolder
from tests.support.configs import MINIMAL, write
from tests.support.runs import begin_run

if TYPE_CHECKING:
    from tests.support.command_line import Run

pytest_plugins = ["tests.support.command_line"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A config whose workspace holds the runs ``deep``, which is done, ``fast``, which ended after an epoch, and ``new``."""
    for name, train in {"deep": {"epochs": 3, "optimizer": {"lr": 0.1}}, "fast": {"optimizer": {"lr": 0.2}}, "new": {}}.items():
        begin_run(parse_config({**MINIMAL, "workspace": str(tmp_path), "run": name, "train": train}, origin="test"))
    RunFolder(f"{tmp_path}/runs/deep").finish(TrainSummary(steps=30, resumed_at=0, validation={"loss": 0.25, "auc": 0.75}))
    evaluation = {"weights_sha256": "w", "network": {"rows": 9, "auc": 0.5, "roc": {}}, "base_rate": {}}
    open_store(f"{tmp_path}/runs/deep").put("evaluation.json", json.dumps(evaluation).encode())
    checkpoints = Checkpoints(f"{tmp_path}/runs/fast")
    part = checkpoints.put_part(save({"model/weight": torch.ones(2)}), steps=10, rank=0)
    checkpoints.commit(CheckpointDocument(
        position=Position(epoch=1, step=2, steps_done=10), validation={"loss": 0.5}, content_id="c", dataset_version=1, seed=1, lanes=24,
        batch_rows=8, code_version="test", parts=(part,)))
    _age(tmp_path / "runs/deep.json", days=3)
    _age(tmp_path / "runs/fast.json", hours=5)
    return write(tmp_path, "tiny.yaml", MINIMAL | {"run": None, "workspace": str(tmp_path)})


def _age(document: Path, **age: float) -> None:
    made = json.loads(document.read_bytes())
    document.write_text(json.dumps(made | {"created_at": (datetime.now(UTC) - timedelta(**age)).isoformat()}), encoding="utf-8")


def _states(run: Run, file: str) -> dict[str, str]:
    return {one["name"]: one["state"] for one in json.loads(run("runs", "list", file, "--json")[1])}


def test_the_list_has_a_line_a_run_oldest_first(run: Run, file: str) -> None:
    code, out, _ = run("runs", "list", file)
    lines = [line.split() for line in out.strip().splitlines()[-3:]]
    assert code == 0
    assert lines[0] == ["deep", "version", "1", "done", "3", "of", "3", "loss", "0.2500,", "auc", "0.7500", "3", "d"]
    assert lines[1] == ["fast", "version", "1", "ended", "1", "of", "5", "loss", "0.5000", "5", "h"]
    assert lines[2][:7] == ["new", "version", "1", "ended", "0", "of", "5"]


def test_a_metric_that_is_no_finite_number_is_kept_and_is_null_in_json(run: Run, file: str, tmp_path: Path) -> None:
    done = TrainSummary(steps=30, resumed_at=0, validation={"loss": math.nan, "accuracy": 0.5})
    RunFolder(f"{tmp_path}/runs/deep").finish(done)
    assert "loss nan, accuracy 0.5000" in run("runs", "list", file)[1]
    (deep,) = (one for one in json.loads(run("runs", "list", file, "--json")[1]) if one["name"] == "deep")
    assert (deep["state"], deep["validation"]) == ("done", {"loss": None, "accuracy": 0.5})


def test_a_run_that_ended_early_has_the_epochs_that_it_trained(run: Run, file: str, tmp_path: Path) -> None:
    RunFolder(f"{tmp_path}/runs/fast").finish(TrainSummary(steps=20, resumed_at=0, epochs=2, ended_early="..."))
    assert [line.split()[4:7] for line in run("runs", "list", file)[1].splitlines() if "fast" in line] == [["2", "of", "5"]]


def test_the_best_epoch_so_far_is_the_best_by_the_run_s_own_metric(run: Run, file: str, tmp_path: Path) -> None:
    checkpoints = Checkpoints(f"{tmp_path}/runs/new")
    for epoch, (loss, auc) in enumerate(((0.4, 0.6), (0.5, 0.8), (0.6, 0.7)), start=1):
        part = checkpoints.put_part(save({"model/weight": torch.ones(2)}), steps=epoch, rank=0)
        checkpoints.commit(CheckpointDocument(
            position=Position(epoch=epoch, steps_done=epoch), validation={"loss": loss, "auc": auc}, score=-auc, content_id="c",
            dataset_version=1, seed=1, lanes=24, batch_rows=8, code_version="test", parts=(part,)))
    found = json.loads(run("runs", "show", file, "new", "--json")[1])
    assert (found["epochs"], found["validation"]) == (3, {"loss": 0.5, "auc": 0.8})


def test_a_workspace_without_runs_says_so(run: Run, file: str, tmp_path: Path) -> None:
    assert run("runs", "list", file, "--set", f"workspace={tmp_path}/other") == (0, f"{tmp_path}/other/runs holds no run yet\n", "")


def test_a_run_that_is_being_trained_is_shown_as_running_and_cannot_be_removed(run: Run, file: str, tmp_path: Path) -> None:
    with RunFolder(f"{tmp_path}/runs/fast").locked(lost=lambda _: None):
        assert _states(run, file) == {"deep": "done", "fast": "running", "new": "ended"}
        code, out, said = run("runs", "remove", file, "fast", "--yes")
        assert (code, out) == (2, "")
        assert "runs/fast is being trained by another process; nothing was removed: stop it first" in said
        assert Checkpoints(f"{tmp_path}/runs/fast").numbers() == [10]
    assert _states(run, file)["fast"] == "ended"


def test_a_damaged_run_hides_no_other_and_can_be_removed(run: Run, file: str, tmp_path: Path) -> None:
    (tmp_path / "runs/fast.json").write_text("{", encoding="utf-8")
    (tmp_path / "runs/new.json").write_text(json.dumps(json.loads((tmp_path / "runs/new.json").read_bytes()) | {"identity": {}}),
                                            encoding="utf-8")
    assert _states(run, file) == {"deep": "done", "fast": "damaged", "new": "damaged"}
    assert "runs/fast.json is damaged: found no JSON" in " ".join(run("runs", "show", file, "fast")[1].split())
    assert "runs/fast is damaged" in run("runs", "compare", file, "deep", "fast")[2]
    assert run("runs", "remove", file, "fast", "--yes")[0] == 0
    assert _states(run, file).keys() == {"deep", "new"}


def test_a_run_is_shown_with_the_settings_that_made_it(run: Run, file: str, tmp_path: Path) -> None:
    code, out, _ = run("runs", "show", file, "deep")
    assert code == 0
    assert f"run deep (done) at {(tmp_path / 'runs/deep').as_uri()}" in out
    for said in ("3 of 3 epochs, 30 steps", "validation  loss 0.2500, auc 0.7500", "test        auc 0.5000", "train.epochs: 3"):
        assert said in out
    assert json.loads(run("runs", "show", file, "deep", "--json")[1])["identity"]["train"]["optimizer"]["lr"] == 0.1
    assert "holds no run deap, it holds deep, and fast, and new; did you mean 'deep'?" in run("runs", "show", file, "deap")[2]


def test_runs_are_compared_by_the_keys_that_differ_and_by_their_metrics(run: Run, file: str) -> None:
    _, out, _ = run("runs", "compare", file, "deep", "fast")
    lines = [line.split() for line in out.splitlines() if line]
    assert lines == [["key", "deep", "fast"], ["train.epochs", "3", "5"], ["train.optimizer.lr", "0.1", "0.2"], ["metric", "deep", "fast"],
                     ["validation", "loss", "0.2500", "0.5000"], ["validation", "auc", "0.7500"], ["test", "auc", "0.5000"]]
    found: dict[str, Any] = json.loads(run("runs", "compare", file, "deep", "fast", "new", "--json")[1])
    assert found["differences"]["train.epochs"] == [3, 5, 5]
    assert found["metrics"]["validation loss"] == [0.25, 0.5, None]
    code, _, said = run("runs", "compare", file, "deep")
    assert (code, "name two runs or more" in said) == (2, True)


def test_a_run_is_removed_with_all_that_it_holds_and_the_others_stay(
        run: Run, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file() and "fast" not in str(path)}
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    code, _, asked = run("runs", "remove", file, "fast")
    assert (code, "runs/fast (ended, 1 of 5 epochs) for good? [y/N]" in asked) == (1, True)
    assert (tmp_path / "runs/fast.json").exists(), "the answer was no"
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    code, out, _ = run("runs", "remove", file, "fast")
    assert (code, out.strip()) == (0, f"removed {(tmp_path / 'runs/fast').as_uri()}")
    assert {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()} == kept
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["deep", "deep.json", "new.json"]
    assert run("runs", "remove", file, "fast", "--yes")[0] == 2


def test_commands_on_one_run_take_a_config_too(run: Run, file: str, tmp_path: Path) -> None:
    by_address = run("checkpoints", "list", f"{tmp_path}/runs/fast")
    assert by_address[0] == 0
    assert run("checkpoints", "list", file, "--set", "run=fast")[:2] == by_address[:2]
    assert "runs/deep holds no events" in run("audit", file, "--set", "run=deep")[2]
    write_dataset(tmp_path / "dataset", [[60]])
    assert "holds the runs deep, and fast, and new, none of which was trained with this config" in run("audit", file)[2]


def test_a_lease_is_held_while_it_is_renewed_and_not_once_it_was_left_or_its_holder_is_gone() -> None:
    store = open_store("memory://runs-of-a-test/run")
    assert not store.is_locked(LOCK)
    with lease(store, LOCK, busy="", lost=lambda: None, renew_s=0.2):
        assert is_leased(store, LOCK)
    assert not store.is_locked(LOCK)
    store.put(f"{LOCK}/7.json", json.dumps({"host": "gone", "renewals": 3, "process": None, "written": ""}).encode())
    assert not is_leased(store, LOCK, watch_s=0.6)
