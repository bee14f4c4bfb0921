"""Retraining: nights with and without news, a worse candidate, a second process, and a call that dies after each of its steps."""

from __future__ import annotations

import json
import math
import pkgutil
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkring.conf.schema import Config
from sparkring.errors import ConfigError, ExpectationsNotMet
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.evaluate import evaluate
from sparkring.spark_jobs.registry.registry import Registry
from sparkring.spark_jobs.retrain import RetrainResult, retrain
from sparkring.spark_jobs.retraining.drift import stability_indices
from sparkring.spark_jobs.retraining.history import History
from sparkring.spark_jobs.stored.runs import list_runs, remove_run
from tests.support import seams
from tests.support.etl_tables import START, Trip, etl_config, trips, write_trips
from tests.support.training import events_of

pytest_plugins = ["tests.support.spark_sessions"]
pytestmark = pytest.mark.spark

SPLIT = {"column": "day", "validation": "10d", "test": "10d"}


def _until(day: int) -> list[Trip]:
    return [trip for trip in trips() if trip.day < START + timedelta(days=day)]


def _config(folder: Path, **retraining: Any) -> Config:
    made = etl_config(folder, _until(60), split=SPLIT)
    return made.changed(run=None, train=made.train.changed(num_ranks=2, epochs=3, batch_rows=32, seed=5),
                        retrain=made.retrain.changed(**retraining) if retraining else made.retrain)


def _with_source(config: Config, rows: Iterable[Trip]) -> Config:
    (source,) = config.prepare.sources.values()
    write_trips(Path(source.path), rows)  # type: ignore[union-attr]
    return config


def _evaluation(config: Config, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(config.runs) / run / "evaluation.json").read_bytes())
    return found


def test_a_night_with_new_rows_trains_compares_and_decides_and_one_without_does_nothing(spark: SparkSession, tmp_path: Path) -> None:
    config = _config(tmp_path)
    first = retrain(config, spark=spark)
    assert (first.outcome, first.reason, first.candidate, first.champion) == ("promoted", "there was no champion", 1, 1)

    second = retrain(_with_source(config, _until(75)), spark=spark)
    assert (second.dataset_version, second.number, second.candidate) == (2, 2, 2)
    registry, (first_ended, ended) = Registry(config.workspace), History(config.workspace).ended()
    assert (ended.outcome, ended.champion, ended.run, ended.dataset_version) == (second.outcome, 1, second.run, 2)
    assert first.run is not None
    assert second.run is not None
    assert not Path(config.runs, first.run, "evaluation-version-2.json").exists()  # of the champion the network's metrics alone
    baselines = [{"base_rate", "logistic_regression"} & _evaluation(config, run).keys() for run in (first.run, second.run)]
    assert baselines == [{"base_rate", "logistic_regression"}, {"base_rate"}]  # from the second night on, the champion is to beat
    of_champion = evaluate(config, run=first.run, dataset_version=2, spark=spark)["network"]
    of_candidate = _evaluation(config, second.run)["network"]
    assert ended.held_out_rows == of_candidate["rows"] == Dataset(config.dataset).manifest(2).splits["test"].rows
    assert ended.gain is not None
    assert math.isclose(ended.gain, of_champion["loss"] - of_candidate["loss"], abs_tol=1e-9)
    assert (ended.champion_metrics["auc"], ended.candidate_metrics["auc"]) == (of_champion["auc"], of_candidate["auc"])
    assert {"km", "km2", "city"} == set(ended.drift)
    assert first_ended.drift == {}
    page = Path(config.workspace, "retrain", "report.html").read_text(encoding="utf-8")
    assert "2 retrainings, of which" in page
    assert f'<td class="number">{ended.candidate_metrics["auc"]:.4f}</td>' in page
    runs = {run.name: run for run in list_runs(config.runs)}
    assert runs[second.run].identity["model"]["weights_sha256"] == registry.version(1).weights_sha256  # it began from the champion

    jobs = _jobs(spark)
    third = retrain(config, spark=spark)
    assert (third.outcome, third.champion) == ("nothing new", second.champion)
    assert _jobs(spark) == jobs
    assert len(runs) == len(list_runs(config.runs)) == 2
    with pytest.raises(ConfigError, match=r"holds model version 1 of the registry, which may be rolled back to"):
        remove_run(config.runs, first.run)


def _jobs(spark: SparkSession) -> int:
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


@pytest.mark.nightly
def test_a_worse_candidate_is_kept_out_and_the_reason_is_told(spark: SparkSession, tmp_path: Path) -> None:
    config = _config(tmp_path, start="afresh")
    retrain(config, spark=spark)
    untrained = config.changed(train=config.train.changed(epochs=1, optimizer={"lr": 1e-9}))
    kept = retrain(_with_source(untrained, _until(75)), spark=spark)
    assert (kept.outcome, kept.candidate, kept.champion) == ("kept", 2, 1)
    assert kept.reason.startswith("it may be worse by more than 1% of the champion's loss: mean loss 0.")
    aliases = Registry(config.workspace).aliases()
    assert (aliases.champion, aliases.candidate, aliases.act, aliases.reason) == (1, None, "kept", kept.reason)


@pytest.mark.nightly
def test_a_call_that_dies_after_any_step_is_gone_on_with_and_each_step_is_done_once(
        spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = _config(tmp_path)
    retrain(config, spark=spark)
    _with_source(config, _until(75))
    for step in (seams.RETRAIN_PREPARE, seams.HISTORY_BEGIN, seams.RETRAIN_TRAIN, seams.RETRAIN_EVALUATE, seams.RETRAIN_REGISTER_RUN,
                 seams.REGISTRY_PROPOSE, seams.RETRAIN_COMPARE, seams.REGISTRY_PROMOTE, seams.REGISTRY_KEEP):
        with monkeypatch.context() as patched:
            patched.setattr(step, _and_dies(pkgutil.resolve_name(step)))
            try:
                ended: RetrainResult | None = retrain(config, spark=spark, promote={"when": "always"})
            except _Killed:
                continue
    assert ended is not None  # nothing is kept, so the last step is not reached
    assert (ended.outcome, ended.number, ended.champion) == ("promoted", 2, 2)
    registry = Registry(config.workspace)
    assert [change.act for change in registry.history()] == ["proposed", "promoted", "proposed", "promoted"]
    assert (registry.versions(), Dataset(config.dataset).versions(), len(History(config.workspace).ended())) == ([1, 2], [1, 2], 2)
    assert len(events_of(config.changed(run=ended.run), "start")) == 2  # one generation of two ranks
    assert retrain(config, spark=spark).outcome == "nothing new"


class _Killed(BaseException):
    """The process ends here."""


def _and_dies(step: Callable[..., Any]) -> Callable[..., Any]:
    def killed(*args: Any, **kwargs: Any) -> None:
        step(*args, **kwargs)
        raise _Killed

    return killed


@pytest.mark.nightly
def test_drift_is_measured_once_though_a_trigger_and_the_record_ask_for_it_and_a_page_that_fails_leaves_the_outcome(
        spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = _config(tmp_path, trigger={"new_rows": None, "max_psi": 1e-9})
    retrain(config, spark=spark)
    measured = []

    def counted(*args: Any) -> dict[str, float]:
        measured.append(args)
        return stability_indices(*args)

    monkeypatch.setattr(seams.RETRAIN_STABILITY_INDICES, counted)
    page = Path(config.workspace, "retrain", "report.html")
    page.unlink()
    page.mkdir()  # nothing can be written in its place
    second = retrain(_with_source(config, _until(75)), spark=spark)
    ended = History(config.workspace).ended()[1]
    assert (second.number, ended.outcome, len(measured)) == (2, second.outcome, 1)
    worst, index = max(ended.drift.items(), key=lambda one: one[1])
    assert History(config.workspace).begun()[1].reasons == (f"{worst} has drifted: stability index {index:.3f} (trigger: 1e-09)",)


def test_a_second_process_yields_and_rows_that_break_expectations_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    config = _config(tmp_path)
    with History(config.workspace).locked():
        busy = retrain(config, spark=spark)
    assert busy.outcome == "busy"
    assert busy.reason.startswith("another process retrains in")
    strict = config.changed(prepare=config.prepare.changed(expectations={"columns": {"km": {"max": 5}}}))
    with pytest.raises(ExpectationsNotMet):
        retrain(strict, spark=spark)
    assert (Dataset(config.dataset).versions(), History(config.workspace).unfinished()) == ([], None)
    with pytest.raises(ConfigError, match="the config sets run, and each retraining has one of its own; leave run out"):
        retrain(config, run="mine")
