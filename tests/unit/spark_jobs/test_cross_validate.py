"""A cross-validation without Spark: what its folds say together, which runs they are, and what becomes of a fold that fails."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.datasets import write_dataset
from sparkring.cli.cross_validate import _print
from sparkring.cli.stored.runs import _version
from sparkring.conf.schema import Config, TabularModelConfig
from sparkring.errors import ConfigError, DatasetError, RankDied, Stopped
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.preprocessing import BucketFeature, Preprocessing
from sparkring.pipelines.training.job.model_files import ModelCard
from sparkring.spark_jobs.cross_validating.cross_validate import CrossValidation, _train_all, _trainings, cross_validate
from sparkring.spark_jobs.etl.fit_sets import suits_all
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.reporting.folds.charts import fold_pictures
from sparkring.spark_jobs.reporting.folds.facts import FoldResult, Spread, spread, spreads, verdict
from sparkring.spark_jobs.run.identity import identity_of, name_of
from sparkring.spark_jobs.scoring.split_rows import version_for
from sparkring.spark_jobs.spark.progress import SILENT
from sparkring.spark_jobs.stored.runs import RunSummary
from sparkring.spark_jobs.train import TrainResult, train
from tests.support import seams
from tests.support.doctor_samples import session
from tests.support.training import train_config


def _folds(*losses: float, **others: tuple[float, ...]) -> list[FoldResult]:
    return [FoldResult(fold=place, run=f"v1-{place}", rows=10 + place, epochs=1, steps=5,
                       metrics={"loss": loss, **{name: values[place] for name, values in others.items()}})
            for place, loss in enumerate(losses)]


def test_the_mean_and_the_sample_standard_deviation_are_those_of_the_textbook() -> None:
    found = spread([1.0, 2.0, 3.0, 6.0])  # squared distances from 3: 4 + 1 + 0 + 9 = 14, over 3
    assert found.mean == 3.0
    assert found.deviation == pytest.approx(math.sqrt(14 / 3))
    assert found.deviation != pytest.approx(math.sqrt(14 / 4)), "the control: over n it would be of a population"


def test_a_metric_that_is_no_number_in_one_fold_has_no_mean() -> None:
    folds = _folds(0.5, 0.7, auc=(0.8, math.nan))
    assert spreads(folds) == {"loss": spread([0.5, 0.7]), "auc": Spread(None, None)}
    assert [picture.name for picture in fold_pictures(folds)] == ["folds-loss"]


def test_the_paragraph_is_made_of_the_numbers() -> None:
    assert verdict(_folds(0.5, 0.7)) == (
        "21 rows in 2 folds, each row validated once by a model that was not trained on it. Mean and sample standard deviation over the "
        "folds: loss 0.6000 \u00b1 0.1414.")


def test_the_table_has_a_line_for_each_fold_and_two_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    folds = tuple(_folds(0.5, 0.7))
    _print(CrossValidation(dataset_version=1, content_id="c", folds=folds, metrics=spreads(folds), at_once=2, seconds=1.0,
                           document="/w/cross-validation.json", page="/w/cross-validation.html"))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["fold", "rows", "epochs", "loss", "run"], ["0", "10", "1", "0.5000", "v1-0"], ["1", "11", "1", "0.7000", "v1-1"],
                     ["mean", "0.6000"], ["deviation", "0.1414"], [], ["/w/cross-validation.json"], ["/w/cross-validation.html"]]


def test_a_run_is_listed_with_its_fold() -> None:
    run = RunSummary(name="a", url="u", state="done", dataset_version=3, identity={"fold": 2})
    assert _version(run) == "version 3, fold 2"
    assert _version(replace(run, identity={})) == "version 3"


def _in_folds(folder: Path) -> Manifest:
    manifest = write_dataset(folder / "dataset", [[300]], validation_rows=300).manifest()
    splits = {f"fold-{place}": split for place, split in enumerate(manifest.splits.values())}
    return manifest.model_copy(update={"splits": splits, "folds": (manifest.preprocessing,) * 2})


def _config(folder: Path, run: str | None = None) -> Config:
    return train_config(folder, run=run, train={"num_ranks": 1})


def test_each_fold_is_a_run_of_its_own(tmp_path: Path) -> None:
    manifest = _in_folds(tmp_path)
    trainings = _trainings(_config(tmp_path), manifest)
    assert [(each.fold, each.run, each.dataset_version) for each in trainings.values()] == [(0, None, 1), (1, None, 1)]
    assert [each.run for each in _trainings(_config(tmp_path, "wide"), manifest).values()] == ["wide-fold-0", "wide-fold-1"]
    views = [manifest.model_copy(update={"fold": fold, "splits": {"train": manifest.splits["fold-1"]}}) for fold in (0, 1)]
    names = {name_of(trainings[fold], view) for fold, view in enumerate(views)}
    assert len(names) == 2
    assert [identity_of(trainings[fold], view)["fold"] for fold, view in enumerate(views)] == [0, 1]


def test_a_run_that_is_of_no_fold_has_the_identity_that_it_had_before_there_were_folds(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path / "dataset", [[300]]).manifest()
    assert set(identity_of(_config(tmp_path), manifest)) == {"format", "content_id", "dataset_version", "model", "train", "lanes"}


def _cross_validated(monkeypatch: pytest.MonkeyPatch, folder: Path, *, master: str = "local[8]", metric: float = 0.5,
                     **ring: Any) -> CrossValidation:
    """Of two folds, where nothing is trained: on eight slots, and one GPU of this machine or of the only executor."""
    write_dataset(folder / "dataset", [[300]]).commit(_in_folds(folder / "other").model_copy(update={"version": 2}))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setattr(seams.RINGS_AT_ONCE_SLOTS_OF, lambda _, resources: resources.gpus if resources else 8)
    monkeypatch.setattr(seams.GPUS_PROFILE_OF, lambda *_: None)
    monkeypatch.setattr(seams.CROSS_VALIDATE_TRAIN, lambda config, **_: replace(
        _trained(f"v2-{config.fold}"), validation={"loss": 0.5, "auc": metric if config.fold else 0.5}))
    config = _config(folder)
    config = config.changed(train=config.train.changed(ring=config.train.ring.changed(**ring)))
    return cross_validate(config, spark=session(spark__master=master, spark__executor__resource__gpu__amount="1"))


def test_no_two_folds_that_train_at_once_share_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert _cross_validated(monkeypatch, tmp_path / "cpu").at_once == 2
    assert _cross_validated(monkeypatch, tmp_path / "gpu", device="cuda").at_once == 1
    assert _cross_validated(monkeypatch, tmp_path / "executor", device="cuda", master="spark://here:7077").at_once == 1


def test_upstream_s_launcher_trains_one_fold_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert _cross_validated(monkeypatch, tmp_path, launcher="horovod.spark").at_once == 1


def test_a_metric_that_is_no_number_is_null_in_the_document(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = _cross_validated(monkeypatch, tmp_path, metric=math.nan)

    def refused(word: str) -> None:
        raise AssertionError(word)

    document = json.loads(Path(found.document.removeprefix("file://")).read_text(encoding="utf-8"), parse_constant=refused)
    assert [fold["metrics"]["auc"] for fold in document["folds"]] == [0.5, None]
    assert document["metrics"]["auc"] == {"mean": None, "deviation": None}


def test_a_version_that_is_not_in_folds_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path / "dataset", [[300]])
    with pytest.raises(DatasetError, match=r"version 1 of .* is not in folds; prepare one with prepare\.split=\{by: fold"):
        cross_validate(_config(tmp_path))


def test_training_on_no_fold_of_a_version_in_folds_is_refused(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset", [[300]])
    dataset.commit(_in_folds(tmp_path / "other").model_copy(update={"version": 2}))
    with pytest.raises(ConfigError, match=r"version 2 of .* is in 2 folds; train on all but each of them with `sparkring cross-validate`, "
                                          r"or on all but one with --set fold=0"):
        train(_config(tmp_path))


def _fitted(manifest: Manifest, *means: float) -> tuple[Preprocessing, ...]:
    """What was fitted for each fold: the mean of one number tells them apart."""
    first, *others = manifest.preprocessing.numeric
    return tuple(manifest.preprocessing.model_copy(update={"numeric": (first.model_copy(update={"mean": mean}), *others)})
                 for mean in means)


def test_a_fold_s_model_reads_that_fold_of_another_version(tmp_path: Path) -> None:
    dataset, made = write_dataset(tmp_path / "dataset", [[300]]), _in_folds(tmp_path / "other")
    for version, folds in enumerate((_fitted(made, 1.0, 2.0), _fitted(made, 3.0, 4.0), _fitted(made, 1.0), ()), start=2):
        dataset.commit(made.model_copy(update={"version": version, "folds": folds}))
    card = ModelCard(name="m", model=TabularModelConfig(), preprocessing=_fitted(made, 1.0, 2.0)[1], dataset_url=dataset.url,
                     dataset_version=1, fold=1, content_id="c", epoch=1, step=1, validation={}, code_version="test")
    found = version_for(card, 2)
    assert (found.fold, found.splits) == (1, dataset.manifest(2, fold=1).splits)
    with pytest.raises(DatasetError, match=r"version 3 of .* was encoded with other figures than version 1"):
        version_for(card, 3)
    for version, words in ((4, "1 folds"), (5, "no folds")):
        with pytest.raises(DatasetError, match=rf"version {version} of .* has {words}, and the model is that of fold 1 of version 1.*;"):
            version_for(card, version)


def _trained(name: str) -> TrainResult:
    return TrainResult(run=name, url=name, reused=False, resumed_at=0, epochs=1, steps=1, validation={"loss": 0.5}, seconds=0.0)


def _train_two_of_three(monkeypatch: pytest.MonkeyPatch, folder: Path, error: BaseException, stop: StopRequest) -> list[int]:
    """The folds that were trained to their ends, where fold 1 ends with an error."""
    done: list[int] = []

    def train(config: Config, *, stop: StopRequest, **_: Any) -> TrainResult:
        stop.require_none()
        if config.fold == 1:
            raise error
        done.append(config.fold or 0)
        return _trained(str(config.fold))

    monkeypatch.setattr(seams.CROSS_VALIDATE_TRAIN, train)
    trainings = {fold: _config(folder).changed(fold=fold) for fold in range(3)}
    with SILENT.stage("folds") as bar, pytest.raises(type(error)):
        _train_all(trainings, None, stop, at_once=1, bar=bar, progress=SILENT)  # type: ignore[arg-type]  # no session is looked at
    return done


def test_a_fold_that_fails_leaves_the_others_to_their_ends_and_its_error_is_raised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert _train_two_of_three(monkeypatch, tmp_path, RankDied(0, "here", 1), StopRequest()) == [0, 2]


def test_a_bug_ends_all_folds_and_is_raised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stop = StopRequest()
    assert 0 in _train_two_of_three(monkeypatch, tmp_path, ZeroDivisionError(), stop)
    assert stop.reason == "fold 1 ended the cross-validation"


def test_an_interrupt_ends_all_folds_and_is_raised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done: list[int] = []

    class Interrupted:
        def update(self, *_: Any, **__: Any) -> None:
            raise KeyboardInterrupt  # as Ctrl-C in a script: in the main thread, while others train

    def train(config: Config, *, stop: StopRequest, **_: Any) -> TrainResult:
        if config.fold:
            stop.wait(2)
        stop.require_none()
        done.append(config.fold or 0)
        return _trained(str(config.fold))

    monkeypatch.setattr(seams.CROSS_VALIDATE_TRAIN, train)
    trainings = {fold: _config(tmp_path).changed(fold=fold) for fold in range(3)}
    with pytest.raises(KeyboardInterrupt):
        _train_all(trainings, None, StopRequest(), at_once=1, bar=Interrupted(), progress=SILENT)  # type: ignore[arg-type]
    assert done == [0]


def test_a_fold_that_was_asked_to_stop_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert _train_two_of_three(monkeypatch, tmp_path, Stopped("stopped as asked; the same call resumes."), StopRequest()) == [0, 2]


def test_what_suits_all_folds_has_every_border_of_each() -> None:
    def of(*edges: float) -> Preprocessing:
        return Preprocessing(numeric=(), categorical=(), train_rows=1, buckets=(BucketFeature(column="km_bucket", of="km", edges=edges),))

    assert suits_all(of(5.0), [of(1.0, 3.0), of(1.0, 2.0)]).buckets[0].edges == (1.0, 2.0, 3.0)
