"""One trial without Spark: which errors are its own, which run it is, and what is read while it trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sparkring.conf.schema import Config
from sparkring.errors import (
    CommitConflict,
    DeadlinePassed,
    EnvironmentProblem,
    LayoutRefused,
    NotEnoughSlots,
    NotFinite,
    RankDied,
    RankFailed,
    RingError,
    SparkEnded,
    SparkringError,
    Stopped,
    StorageError,
)
from sparkring.pipelines.training.events.writer import EventWriter, file_name
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.run.given import with_given_weights
from sparkring.spark_jobs.run.identity import name_of
from sparkring.spark_jobs.searching.epochs import Epochs
from sparkring.spark_jobs.searching.trial_run import TrialRun
from sparkring.spark_jobs.searching.trials import Trial
from tests.support import seams
from tests.support.report_samples import sample_manifest
from tests.support.training import train_config

MANIFEST = sample_manifest()
DEADLINE_S = 30.0


def _trial_run(config: Config, *, prunes: Callable[[int, Sequence[float]], bool] = lambda *_: False) -> TrialRun:
    return TrialRun(config, MANIFEST, None, prunes, StopRequest())  # type: ignore[arg-type]


def _raising(error: Exception) -> Callable[..., Any]:
    def train(*_: Any, **__: Any) -> Any:
        raise error
    return train


@pytest.mark.parametrize("error", [
    SparkEnded("Spark has ended; start it again."), EnvironmentProblem("no Java; install it."), StorageError("the disk is full; free some"),
    NotEnoughSlots(wanted=2, slots=1, where="local[1]", remedy="add some"), CommitConflict("trained by another process; wait."),
    RingError("the tasks lost contact; see the logs."), DeadlinePassed("no rank came; wait."),
    RankFailed(0, "StorageError: storage is away; bring it back.", "")], ids=lambda error: str(error).partition(";")[0])
def test_a_fault_of_the_cluster_is_raised_and_no_trial_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: SparkringError) -> None:
    monkeypatch.setattr(seams.TRIAL_RUN_TRAIN, _raising(error))
    with pytest.raises(type(error)):
        _trial_run(train_config(tmp_path)).run(Trial(number=0, params={}))


@pytest.mark.parametrize("error", [
    NotFinite("the loss of step 3 is NaN; lower the rate."), LayoutRefused("6 stages; give fewer."),
    RankFailed(0, "ZeroDivisionError: division by zero", "Traceback"), RankDied(0, "host", -9)],
    ids=lambda error: type(error).__name__)
def test_a_failure_of_its_own_is_a_failed_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: SparkringError) -> None:
    monkeypatch.setattr(seams.TRIAL_RUN_TRAIN, _raising(error))
    ended = _trial_run(train_config(tmp_path)).run(Trial(number=0, params={}))
    assert (ended.state, ended.error) == ("failed", f"{type(error).__name__}: {error}")


def test_a_trial_without_the_metric_of_the_search_is_a_failed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.TRIAL_RUN_TRAIN, lambda *_, **__: SimpleNamespace(validation={"loss": 1.0, "rmse": 2.0, "mae": 1.5}))
    ended = _trial_run(train_config(tmp_path, search={"metric": "r2"})).run(Trial(number=0, params={}))
    assert ended.state == "failed"
    assert ended.error == "the validation split has no r2: all its labels are alike; search by loss, or hold out other rows"


def test_a_trial_whose_run_another_process_takes_over_is_not_a_failed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*_: Any, stop: StopRequest, **__: Any) -> Any:
        stop.ask("another process has taken over the run")
        raise Stopped("stopped as asked")

    monkeypatch.setattr(seams.TRIAL_RUN_TRAIN, train)
    with pytest.raises(CommitConflict, match="since another process has taken over the run; wait for run v1-"):
        _trial_run(train_config(tmp_path)).run(Trial(number=0, params={}))


def test_a_trial_is_the_run_that_train_gives_its_values_with_given_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams.TRIAL_RUN_TRAIN, _raising(NotFinite("the loss is NaN; lower the rate.")))
    runs = []
    for number, name in enumerate(("one", "other")):
        path = f"{tmp_path}/{name}.safetensors"
        save_file({"a": torch.full((1,), float(number))}, path)
        config = train_config(tmp_path, run=None, model={"weights": path})
        params = {"model.weights": path}
        runs.append(_trial_run(train_config(tmp_path)).run(Trial(number=number, params=params)).run)
        assert runs[-1] == name_of(with_given_weights(config), MANIFEST)
    assert runs[0] != runs[1]


def test_an_error_while_a_trial_is_watched_stops_the_trial_and_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def train(config: Config, *, stop: StopRequest, **_: Any) -> Any:
        _write(config.run_url, generation=0, losses=[0.5])
        asked.append(stop.wait(DEADLINE_S))
        raise Stopped("stopped as asked")

    def prunes(number: int, epochs: Sequence[float]) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(seams.TRIAL_RUN_TRAIN, train)
    monkeypatch.setattr(seams.TRIAL_RUN_LOOK_S, 0.01)
    with pytest.raises(ZeroDivisionError):
        _trial_run(train_config(tmp_path), prunes=prunes).run(Trial(number=0, params={}))
    assert asked == [True], "the trial would train to its end"


def test_each_look_at_the_epochs_reads_only_what_is_new_of_rank_0(tmp_path: Path) -> None:
    epochs = Epochs(str(tmp_path), "loss")
    assert epochs.so_far() == ()
    _write(str(tmp_path), generation=0, losses=[0.5, 0.4])
    (tmp_path / file_name(0, 1)).write_text("what no look may read\n")
    assert epochs.so_far() == (0.5, 0.4)
    first = tmp_path / file_name(0, 0)
    first.write_bytes(b"x" * (first.stat().st_size - 1) + b"\n")
    assert epochs.so_far() == (0.5, 0.4), "what was read once is not read again"
    _write(str(tmp_path), generation=1, losses=[0.3, 0.2], epoch=1)
    assert epochs.so_far() == (0.5, 0.3, 0.2), "the second epoch was repeated after a restart"


def _write(run_url: str, *, generation: int, losses: Sequence[float], epoch: int = 0) -> None:
    with EventWriter(run_url, generation=generation, rank=0) as events:
        for number, loss in enumerate(losses, epoch):
            events.write("epoch", epoch=number, validation={"loss": loss})
