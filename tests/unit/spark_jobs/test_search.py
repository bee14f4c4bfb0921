"""A search without Spark: what may be tried, how trials are chosen and ended early, and how a search that was cut off goes on."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from harness.datasets import write_dataset
from sparkring.conf.schema import Config, TrainConfig
from sparkring.errors import (
    CommitConflict,
    ConfigError,
    DatasetError,
    NotFinite,
    RankFailed,
    SparkEnded,
    SparkringError,
    Stopped,
    StorageError,
)
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.searching.page import write_search
from sparkring.spark_jobs.searching.search import _Searching, best_of, require_some_done, search
from sparkring.spark_jobs.searching.space import require_searchable, with_params
from sparkring.spark_jobs.searching.study import Study
from sparkring.spark_jobs.searching.trial_run import is_no_trial_s
from sparkring.spark_jobs.searching.trials import Trial, Trials
from sparkring.spark_jobs.spark.progress import SilentProgress
from tests.support import seams
from tests.support.report_samples import sample_manifest
from tests.support.training import train_config

MANIFEST = sample_manifest()
SPACE: dict[str, Any] = {
    "train.optimizer.lr": {"low": 1e-4, "high": 0.1, "log": True}, "train.batch_rows": {"low": 32, "high": 128, "step": 32},
    "model.hidden": {"choices": [[8], [16, 8]]}, "train.optimizer.name": {"choices": ["sgd", "adamw"]}}


def _config(folder: Path, space: dict[str, Any] | None = None, **search: Any) -> Config:
    return train_config(folder, search={"space": SPACE if space is None else space, **search})


@pytest.mark.parametrize(("space", "message"), [
    ({}, "search.space names no key; give some"),
    ({"train.optimizer.lr": {"low": 0.1, "high": 0.01}}, "the range from 0.1 to 0.01 holds no value; give low below high"),
    ({"train.optimizer.lr": {"low": 0.1}}, "the range from 0.1 to None holds no value"),
    ({"train.optimizer.lr": {"low": 0, "high": 1, "log": True}}, "log needs a range above 0"),
    ({"train.optimizer.lr": {}}, "found no values; give low and high, or choices"),
    ({"train.optimizer.lr": {"choices": [0.1]}}, "at least two of them"),
    ({"train.optimizer.lr": {"low": 0.1, "high": 0.2, "step": 5}}, "leads out of the range from 0.1 to 0.2"),
    ({"train.epochs": {"low": 1.0, "high": 3.0}}, "search.space.train.epochs holds 1.74, which the config does not take"),
    ({"train.optimizer.lrr": {"low": 0.1, "high": 1.0}}, "search.space.train.optimizer.lrr holds 0.1, which the config does not take"),
    ({"train.optimizer.lr": {"low": -1.0, "high": 1.0}}, "search.space.train.optimizer.lr holds -1.0, which the config does not take"),
    ({"prepare.seed": {"low": 1, "high": 3}}, "only keys of model and train may vary"),
    ({"train.bucket_mb": {"low": 1, "high": 3}}, "which does not change what is learned; leave it out"),
    ({"train.ring.device": {"choices": ["cpu", "cuda"]}}, "which does not change what is learned; leave it out"),
    ({"train.optimizer": {"choices": [{"name": "sgd"}, {"name": "adamw"}]}, "train.optimizer.lr": {"low": 0.1, "high": 1.0}},
     "train.optimizer and, inside it, train.optimizer.lr, so two values would stand in one place; leave one out"),
    ({"train.loss": {"choices": ["squared", "absolute"]}}, "losses of different kinds; set search.metric to rmse, mae or r2"),
    ({"train.huber_delta": {"low": 0.5, "high": 2.0}}, "losses of different kinds; set search.metric to rmse, mae or r2"),
    ({"train.batch_rows": {"low": 100, "high": 1000, "step": 256}}, "steps of 256 from 100 miss high=1000; set high to 868 or 1124"),
    ({"train.optimizer.lr": {"low": 0.1, "high": 0.5, "step": 0.3}}, "steps of 0.3 from 0.1 miss high=0.5; set high to 0.4 or 0.7")],
    ids=str)
def test_a_space_that_holds_no_values_or_some_that_the_config_does_not_take_is_refused(
        tmp_path: Path, space: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        require_searchable(_config(tmp_path, space))


def test_a_metric_of_its_own_compares_losses_of_different_kinds(tmp_path: Path) -> None:
    config = _config(tmp_path, {"train.loss": {"choices": ["squared", "absolute"]}}, metric="mae")
    prepare = {**config.prepare.model_dump(exclude_unset=True), "task": "regression"}
    require_searchable(train_config(tmp_path, prepare=prepare, search=config.search.model_dump(exclude_unset=True)))


def test_of_the_ring_only_what_changes_gradients_is_searched(tmp_path: Path) -> None:
    config = train_config(tmp_path, train={"ring": {"allreduce": "auto"}}, spark={"master": "spark://host:7077"}, search={
        "space": {"train.ring.wire": {"choices": ["exact", "bf16"]}}})
    require_searchable(config)
    rounded = config.changed(train=config.train.changed(ring=config.train.ring.changed(wire="fp16")))
    assert Trials(rounded, MANIFEST).url == Trials(config, MANIFEST).url


def test_a_range_whose_steps_end_at_its_end_is_taken(tmp_path: Path) -> None:
    require_searchable(_config(tmp_path, {"train.optimizer.lr": {"low": 0.1, "high": 0.7, "step": 0.2}}))  # in binary it misses 0.7


def test_a_trial_s_values_stay_as_they_are_when_they_become_keys(tmp_path: Path) -> None:
    params = {"train.optimizer": {"name": "sgd"}, "train.optimizer.lr": 0.5}
    with_params(_config(tmp_path), params)
    assert params["train.optimizer"] == {"name": "sgd"}


def test_a_trial_s_values_stand_in_its_config_and_lie_in_the_space(tmp_path: Path) -> None:
    config = _config(tmp_path)
    require_searchable(config)
    study, rates = Study(config.search, [], epochs=5), list[float]()
    for number in range(40):
        asked = study.ask(number)
        assert asked is not None
        params = asked.params
        tried = with_params(config, params)
        assert 1e-4 <= tried.train.optimizer.lr <= 0.1
        assert tried.train.batch_rows in (32, 64, 96, 128)
        assert list(tried.model.hidden) in ([8], [16, 8])  # type: ignore[union-attr]
        rates.append(tried.train.optimizer.lr)
        study.tell(Trial(number=number, params=params, state="done", value=rates[-1]))
    assert statistics.median(rates[20:]) < statistics.median(rates[:10]), "low values were good"


def test_a_trial_worse_than_the_median_ends_early_and_with_pruner_none_it_does_not(tmp_path: Path) -> None:
    for pruner, wanted in (("median", True), ("none", False)):
        config = _config(tmp_path, pruner=pruner)
        done = [Trial(number=number, params=with_values(number), state="done", value=0.1, epochs=(0.5, 0.1)) for number in range(6)]
        study = Study(config.search, done, epochs=2)
        study.ask(6)
        assert study.prunes(6, (0.9,)) is wanted
        study.ask(7)
        assert not study.prunes(7, (0.2,)), "the control: a good one"


def with_values(number: int) -> dict[str, Any]:
    return {"train.optimizer.lr": 0.001 * (number + 1), "train.batch_rows": 64, "model.hidden": [8], "train.optimizer.name": "sgd"}


class _FakeRun:
    """Trials whose value is their learning rate; some fail, and the search is asked to stop after some."""

    def __init__(self, *, fails: int | None = None, stops_after: int | None = None) -> None:
        self.stop, self.ran = StopRequest(), Counter[int]()
        self._fails, self._stops_after = fails, stops_after

    def run(self, trial: Trial) -> Trial:
        self.ran[trial.number] += 1
        if self._stops_after is not None and sum(self.ran.values()) > self._stops_after:
            self.stop.ask("Ctrl-C")
            raise Stopped("stopped", signal_number=2)
        if trial.number == self._fails:
            return trial.model_copy(update={"state": "failed", "error": "RankFailed: no"})
        return trial.model_copy(update={"state": "done", "value": trial.params["train.optimizer.lr"]})


def _search(config: Config, run: _FakeRun, *, at_once: int = 2) -> Trials:
    trials = Trials(config, MANIFEST)
    with SilentProgress().stage("search", total=config.search.trials) as bar:
        _Searching(config, trials, bar).run(run, at_once=at_once)  # type: ignore[arg-type]
    return trials


def test_a_failed_trial_is_a_failed_trial_and_the_best_of_the_others_is_found(tmp_path: Path) -> None:
    config = _config(tmp_path, trials=8)
    run = _FakeRun(fails=3)
    found = _search(config, run).read()
    assert [trial.number for trial in found] == list(range(8))
    assert [trial.state for trial in found].count("failed") == 1
    best = best_of(found, config)
    assert best is not None
    assert best.value == min(trial.value for trial in found if trial.value is not None)


def test_a_search_that_was_cut_off_repeats_no_trial_that_ended_and_goes_on_with_the_others(tmp_path: Path) -> None:
    config = _config(tmp_path, trials=8)
    cut = _FakeRun(stops_after=5)
    with pytest.raises(Stopped, match="the same command resumes the search"):
        _search(config, cut)
    states = [trial.state for trial in Trials(config, MANIFEST).read()]
    assert states.count("done") == 5
    assert "begun" in states
    again = _FakeRun()
    found = _search(config, again).read()
    assert [trial.state for trial in found] == ["done"] * 8
    assert all(count == 1 for count in again.ran.values())
    assert sum(again.ran.values()) == 3, "the five that had ended were not repeated"
    more = _FakeRun()
    assert len(_search(config.changed(search=config.search.changed(trials=10)), more).read()) == 10
    assert sum(more.ran.values()) == 2, "more trials continue the same search"


def test_no_values_are_tried_twice_also_in_a_later_call_and_a_space_that_is_used_up_ends_the_search(tmp_path: Path) -> None:
    config = _config(tmp_path, trials=6, sampler="random")
    _search(config, _FakeRun())
    found = _search(config.changed(search=config.search.changed(trials=12)), _FakeRun()).read()
    assert len({str(trial.params) for trial in found}) == 12
    small = _config(tmp_path, {"model.hidden": {"choices": [[4], [16]]}, "train.seed": {"choices": [1, 2]}}, trials=9)
    assert len(_search(small, _Constant()).read()) == 4


class _Constant(_FakeRun):
    def run(self, trial: Trial) -> Trial:
        return trial.model_copy(update={"state": "done", "value": 1.0})


def test_where_all_trials_failed_the_search_fails_with_the_first_error() -> None:
    failed = [Trial(number=number, params={}, state="failed", error=f"RankFailed: {number}.") for number in range(2)]
    with pytest.raises(SparkringError, match=r"all 2 trials failed, the first one by: RankFailed: 0; correct that, and delete runs/s"):
        require_some_done(failed, "runs/s")
    require_some_done([*failed, Trial(number=2, params={}, state="pruned")], "runs/s")


@pytest.mark.parametrize(("error", "no_trial_s"), [
    (NotFinite("it diverged"), False), (RankFailed(0, "NotFinite: it diverged", ""), False),
    (DatasetError("a file differs"), True), (RankFailed(0, "DatasetError: a file differs", ""), True)])
def test_a_network_that_diverges_is_a_failed_trial_and_data_that_cannot_be_read_is_none(error: SparkringError, no_trial_s: bool) -> None:
    assert is_no_trial_s(error) == no_trial_s


def test_an_error_that_is_no_trial_s_ends_the_search_and_asks_the_others_to_stop(tmp_path: Path) -> None:
    run = _Broken()
    with pytest.raises(ZeroDivisionError):
        _search(_config(tmp_path, trials=8), run)
    assert run.stop.asked


class _Broken(_FakeRun):
    def run(self, trial: Trial) -> Trial:
        if trial.number == 0:
            raise ZeroDivisionError
        assert self.stop.wait(30), "it was not asked to stop"
        raise Stopped("stopped", signal_number=2)


def test_an_error_of_the_search_itself_asks_the_trials_under_way_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, ask = _Waiting(), Study.ask

    def full(study: Study, number: int) -> Trial | None:
        if number == 1:
            raise StorageError("the disk is full; free some.")
        return ask(study, number)

    monkeypatch.setattr(seams.STUDY_ASK, full)
    with pytest.raises(StorageError, match="the disk is full"):
        _search(_config(tmp_path, trials=8), run)
    assert run.stop.asked


class _Waiting(_FakeRun):
    def run(self, trial: Trial) -> Trial:
        assert self.stop.wait(30), "it was not asked to stop"
        raise Stopped("stopped", signal_number=2)


def test_a_fault_of_the_cluster_ends_the_search_and_the_next_call_resumes_its_trial(tmp_path: Path) -> None:
    config = _config(tmp_path, trials=4)
    with pytest.raises(SparkEnded):
        _search(config, _Gone())
    assert {trial.state for trial in Trials(config, MANIFEST).read()} == {"begun"}
    again = _FakeRun()
    assert [trial.state for trial in _search(config, again).read()] == ["done"] * 4
    assert again.ran[0] == 1


class _Gone(_FakeRun):
    def run(self, trial: Trial) -> Trial:
        raise SparkEnded("Spark has ended; start it again.")


def test_another_trial_takes_the_place_of_one_whose_document_was_deleted(tmp_path: Path) -> None:
    config = _config(tmp_path, trials=4)
    trials = _search(config, _FakeRun(fails=1))
    Path(trials.url.removeprefix("file://"), "1.json").unlink()
    assert [(trial.number, trial.state) for trial in _search(config, _FakeRun()).read()] == [(number, "done") for number in range(4)]


def test_a_metric_that_is_not_a_number_can_be_read_again(tmp_path: Path) -> None:
    trials = Trials(_config(tmp_path), MANIFEST)
    trials.write(Trial(number=0, params={}, state="pruned", epochs=(0.5, math.nan)))
    (again,) = trials.read()
    assert math.isnan(again.epochs[1])


def test_settings_that_change_nothing_learned_belong_to_the_same_search(tmp_path: Path) -> None:
    config = _config(tmp_path)
    wider = config.changed(train=config.train.changed(num_ranks=4, cache_mb=10.0))
    assert Trials(wider, MANIFEST).url == Trials(config, MANIFEST).url


def test_another_space_or_version_is_another_search(tmp_path: Path) -> None:
    config = _config(tmp_path)
    other = _config(tmp_path, {"train.optimizer.lr": {"low": 1e-3, "high": 0.1, "log": True}})
    encoded_otherwise = sample_manifest(version=2)
    assert encoded_otherwise.content_id == MANIFEST.content_id, "the files are the same, the figures that scale their numbers are not"
    assert len({Trials(config, MANIFEST).url, Trials(config, encoded_otherwise).url, Trials(other, MANIFEST).url}) == 3


def test_gradients_that_are_rounded_on_their_way_are_another_search(tmp_path: Path) -> None:
    exact, rounded = (_config(tmp_path).changed(train=TrainConfig.model_validate({"ring": {"allreduce": "auto", "wire": wire}}))
                      for wire in ("exact", "bf16"))
    assert Trials(exact, MANIFEST).url != Trials(rounded, MANIFEST).url


def test_the_config_s_own_value_of_a_searched_key_does_not_count(tmp_path: Path) -> None:
    config = _config(tmp_path)
    other = config.changed(train=config.train.changed(batch_rows=77, optimizer={"lr": 0.7}))
    assert Trials(other, MANIFEST).url == Trials(config, MANIFEST).url
    section = _config(tmp_path, {"train.optimizer": {"choices": [{"name": "sgd"}, {"name": "adamw"}]}})
    other = section.changed(train=section.train.changed(optimizer={"lr": 0.7}))
    assert Trials(other, MANIFEST).url != Trials(section, MANIFEST).url, "each choice takes its learning rate from the config"


@pytest.mark.parametrize("searched", [False, True], ids=["in the config", "as a choice"])
def test_other_bytes_in_the_file_of_given_weights_are_another_search(tmp_path: Path, *, searched: bool) -> None:
    one, other = (_weights(tmp_path / name, 1.0) for name in ("one", "other"))
    space = {"model.weights": {"choices": [one, other]}} if searched else SPACE
    config = train_config(tmp_path, model={} if searched else {"weights": one}, search={"space": space})
    url = Trials(config, MANIFEST).url
    assert Trials(config, MANIFEST).url == url
    _weights(tmp_path / "one", 2.0)
    assert Trials(config, MANIFEST).url != url


def _weights(path: Path, value: float) -> str:
    save_file({"a": torch.full((1,), value)}, f"{path}.safetensors")
    return f"{path}.safetensors"


def test_a_second_call_of_the_same_search_is_refused_in_one_sentence(tmp_path: Path) -> None:
    write_dataset(tmp_path / "dataset", ([600, 600],))
    config = _config(tmp_path)
    trials = Trials(config, Dataset(config.dataset).manifest())
    said = r"another process is at the search .*; wait for it: the same command then continues the search\.$"
    with trials.locked(lost=lambda: None), pytest.raises(CommitConflict, match=said):
        search(config)
    with trials.locked(lost=lambda: None):
        pass  # the lock is free again


def test_the_page_names_the_best_and_shows_every_trial(tmp_path: Path) -> None:
    config = _config(tmp_path, {"train.optimizer.lr": {"low": 1e-3, "high": 0.1, "log": True}, "model.hidden": {"choices": [[4], [16]]}})
    trials = [
        Trial(number=0, params={"train.optimizer.lr": 0.01, "model.hidden": [4]}, state="done", run="a", value=0.5, epochs=(0.6, 0.5)),
        Trial(number=1, params={"train.optimizer.lr": 0.02, "model.hidden": [16]}, state="done", run="b", value=0.4, epochs=(0.4, 0.7)),
        Trial(number=2, params={"train.optimizer.lr": 0.1, "model.hidden": [4]}, state="pruned", run="c", epochs=(math.nan,)),
        Trial(number=3, params={"train.optimizer.lr": 0.1, "model.hidden": [16]}, state="failed", error="<b>it was full</b>")]
    page = Path(write_search(trials, trials[1], config=config, url=str(tmp_path / "search/x")).removeprefix("file://")).read_text("utf-8")
    assert "4 trials: 2 trained to the end, 1 ended early, 1 failed. The best is trial 1: loss 0.4000 with train.optimizer.lr 0.02" in page
    assert re.findall(r'<th scope="row" class="number">(\d)</th>', page) == ["1", "0", "2", "3"], "the best first"
    assert [f'id="{name}-title"' in page for name in ("trials", "epochs", "key-0", "key-1", "key-2")] == [True] * 4 + [False]
    assert "&lt;b&gt;it was full&lt;/b&gt;" in page


def test_a_search_without_a_best_trial_has_a_page_too(tmp_path: Path) -> None:
    config = _config(tmp_path, {"train.optimizer.lr": {"low": 1e-3, "high": 0.1}})
    trials = [Trial(number=0, params={"train.optimizer.lr": 0.01}, state="pruned", epochs=(0.6,))]
    page = Path(write_search(trials, None, config=config, url=str(tmp_path)).removeprefix("file://")).read_text("utf-8")
    assert "1 trial: 1 ended early. None can be named best." in page
