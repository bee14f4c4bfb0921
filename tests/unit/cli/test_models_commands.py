"""``sparkring models list | show | promote | rollback``, and the exit codes of ``retrain``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.datasets import write_dataset
from sparkring.conf.loading import parse_config
from sparkring.errors import ExpectationResult, ExpectationsNotMet
from sparkring.spark_jobs.retrain import RetrainResult
from tests.support import seams
from tests.support.configs import MINIMAL, write
from tests.support.etl_tables import save_untrained

if TYPE_CHECKING:
    from tests.support.command_line import Run

pytest_plugins = ["tests.support.command_line"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A config whose workspace holds the evaluated runs ``a`` and ``b``."""
    write_dataset(tmp_path / "dataset", [[40]])
    for seed, run in enumerate("ab"):
        config = parse_config({**MINIMAL, "workspace": str(tmp_path), "run": run}, origin="test")
        card = save_untrained(config, seed=seed)
        evaluation = {"weights_sha256": card.weights_sha256, "split": "test",
                      "network": {"rows": 1_000, "positives": 300, "auc": 0.7 + seed / 10, "loss": 0.5, "roc": {}}}
        (tmp_path / "runs" / run / "evaluation.json").write_text(json.dumps(evaluation), encoding="utf-8")
    return write(tmp_path, "tiny.yaml", MINIMAL | {"run": None, "workspace": str(tmp_path)})


def _promoted(run: Run, file: str, name: str) -> None:
    assert run("models", "promote", file, "--set", f"run={name}", "--reason", f"{name} is good")[0] == 0


def test_a_run_is_registered_when_it_is_promoted_and_a_rollback_brings_the_one_before_back(run: Run, file: str) -> None:
    assert "no registered model yet; sparkring retrain registers one" in run("models", "list", file)[1]
    _promoted(run, file, "a")
    _promoted(run, file, "b")
    _promoted(run, file, "b")  # it is the champion already
    code, out, _ = run("models", "list", file)
    lines = [line.split() for line in out.splitlines() if line.strip()]
    assert code == 0
    assert (lines[1][:2], lines[2][:3]) == (["1", "a"], ["2", "champion", "b"])
    assert "auc 0.8000 [0.7" in out
    assert run("models", "rollback", file, "--reason", "too late")[1] == "model version 1 is the champion (too late)\n"
    shown = run("models", "show", file, "champion")[1]
    assert "model version 1 of" in shown
    assert "promoted: a is good" in shown
    assert "rolled back: too late" in shown
    assert json.loads(run("models", "list", file, "--json")[1])["champion"] == 1


def test_a_model_whose_files_were_touched_is_neither_shown_nor_promoted(run: Run, file: str) -> None:
    _promoted(run, file, "a")
    _promoted(run, file, "b")
    weights = next((Path(file).parent / "runs/a/model").glob("weights-*"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    for command in (("show", file, "1"), ("promote", file, "1"), ("rollback", file)):
        code, _, err = run("models", *command)
        assert (code, err.count("\n")) == (2, 1)
        assert "model version 1 in" in err
        assert "has SHA-256" in err
    assert json.loads(run("models", "list", file, "--json")[1])["champion"] == 2


def test_a_run_that_was_not_evaluated_is_not_registered(run: Run, file: str) -> None:
    (Path(file).parent / "runs/a/evaluation.json").unlink()
    code, _, err = run("models", "promote", file, "--set", "run=a")
    assert code == 2
    assert "was not evaluated, and a registered model says how good it is; run `sparkring evaluate` with this config first" in err


@pytest.mark.parametrize(("outcome", "code"), [("promoted", 0), ("kept", 10), ("nothing new", 11), ("busy", 12)])
def test_a_scheduler_learns_the_outcome_by_the_exit_code_if_it_asks(
        run: Run, file: str, monkeypatch: pytest.MonkeyPatch, outcome: str, code: int) -> None:
    monkeypatch.setattr(seams.RETRAIN_RETRAIN, lambda *_, **__: RetrainResult(outcome, "because", champion=3))  # type: ignore[arg-type]
    assert run("retrain", file)[:2] == (0, f"{outcome}: because\nchampion: model version 3\n")
    assert run("retrain", file, "--exit-codes")[0] == code


def test_rows_that_break_expectations_have_an_exit_code_of_their_own(run: Run, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise ExpectationsNotMet([ExpectationResult("km", "at most 5", "7", met=False)])

    monkeypatch.setattr(seams.RETRAIN_RETRAIN, refused)
    assert run("retrain", file)[0] == 3
