"""Which run a config means: another dataset version, model or training is another run, and nothing of an earlier one is lost."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.datasets import write_dataset
from sparkring.cli.terminal.console import PlainProgress
from sparkring.conf.loading import parse_config
from sparkring.conf.schema import Config
from sparkring.errors import ConfigError, ModelVersionNotFound, RunFolderMismatch
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.training.job.job import TrainSummary
from sparkring.spark_jobs.registry.registry import Registry
from sparkring.spark_jobs.run.identity import name_of
from sparkring.spark_jobs.run.place import with_existing_run, with_run, with_run_if_any
from sparkring.spark_jobs.train import TrainResult, train
from tests.support import seams
from tests.support.configs import MINIMAL

ROWS = 600


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with a dataset; training there trains nothing."""
    write_dataset(tmp_path / "dataset", [[ROWS]])
    monkeypatch.setattr(seams.SPARK_RING_RUN, lambda *_, **__: TrainSummary(steps=7, resumed_at=0, validation={"loss": 0.5}))
    return tmp_path


def config_of(workspace: Path, **sections: Any) -> Config:
    """A config that names no run."""
    return parse_config({**MINIMAL, "run": None, "workspace": str(workspace), **sections}, origin="test")


def commit_again(workspace: Path) -> Manifest:
    """A next version, of other content."""
    dataset = Dataset(str(workspace / "dataset"))
    latest = dataset.manifest()
    return dataset.commit(latest.model_copy(update={"version": latest.version + 1, "parent": latest.version,
                                                    "content_id": f"content of {latest.version + 1}", "manifest_sha256": ""}))


def trained(workspace: Path, **sections: Any) -> TrainResult:
    return train(config_of(workspace, **sections))


def state_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("change", "same"), [
    pytest.param({"train": {"num_ranks": 4}}, True, id="another number of ranks"),
    pytest.param({"train": {"checkpoint_steps": 3, "recovery": {"restarts": 0}}}, True, id="other checkpoints"),
    pytest.param({"train": {"batch_rows": 32}}, True, id="the batch that is the default"),
    pytest.param({"name": "other", "spark": {"master": "local[7]"}, "score": {"split": "validation"}}, True, id="other sections"),
    pytest.param({"train": {"batch_rows": 64}}, False, id="another batch"),
    pytest.param({"train": {"optimizer": {"lr": 0.5}}}, False, id="another learning rate"),
    pytest.param({"train": {"lanes": 48}}, False, id="lanes that are given"),
    pytest.param({"model": {"hidden": [3]}}, False, id="another model")])
def test_a_run_is_named_after_all_that_changes_what_it_learns_and_nothing_else(workspace: Path, change: dict[str, Any], same: bool) -> None:
    manifest = Dataset(str(workspace / "dataset")).manifest()
    name = name_of(config_of(workspace), manifest)
    assert name.startswith("v1-")
    assert (name_of(config_of(workspace, **change), manifest) == name) is same


def test_the_second_night_is_a_second_run_and_leaves_the_first_as_it_was(workspace: Path) -> None:
    first = trained(workspace)
    before = state_of(workspace / "runs" / first.run)
    assert trained(workspace).reused
    commit_again(workspace)
    second = trained(workspace)
    wider = trained(workspace, model={"hidden": [5]})
    assert [run.run.partition("-")[0] for run in (first, second, wider)] == ["v1", "v2", "v2"]
    assert [run.reused for run in (first, second, wider)] == [False] * 3
    assert len({run.url for run in (first, second, wider)}) == 3
    assert state_of(workspace / "runs" / first.run) == before
    assert trained(workspace, dataset_version=1).url == first.url


def test_results_are_read_from_the_run_that_train_would_resume(workspace: Path) -> None:
    first = trained(workspace)
    commit_again(workspace)
    second, wider = trained(workspace), trained(workspace, model={"hidden": [5]})
    notes = io.StringIO()
    found = [with_existing_run(config_of(workspace, **sections), progress=PlainProgress(notes)).run
             for sections in ({}, {"model": {"hidden": [5]}}, {"dataset_version": 1}, {"run": first.run})]
    assert found == [second.run, wider.run, first.run, first.run]
    assert notes.getvalue() == ""


def test_on_a_version_without_a_run_this_config_s_latest_run_is_used_and_named(workspace: Path) -> None:
    trained(workspace, model={"hidden": [5]})
    first = trained(workspace)
    commit_again(workspace)
    notes = io.StringIO()
    assert with_existing_run(config_of(workspace), progress=PlainProgress(notes)).run == first.run
    assert notes.getvalue() == f"using run {first.run}, this config's latest: it has none on dataset version 2 yet\n"


def test_the_only_run_is_used_and_named_though_it_was_trained_with_another_config(workspace: Path) -> None:
    only, notes = trained(workspace), io.StringIO()
    assert with_existing_run(config_of(workspace, train={"epochs": 9}), progress=PlainProgress(notes)).run == only.run
    assert notes.getvalue() == f"using run {only.run}, the only one here: this config's own run is not begun yet\n"
    shutil.rmtree(workspace / "dataset")
    assert with_existing_run(config_of(workspace)).run == only.run, "also without the dataset"


def test_which_of_several_runs_is_meant_has_to_be_said(workspace: Path) -> None:
    names = sorted(trained(workspace, model={"hidden": [width]}).run for width in (3, 5))
    with pytest.raises(ConfigError, match=rf"holds the runs {names[0]}, and {names[1]}, none .* this config; name one, e.g. --set run="):
        with_existing_run(config_of(workspace))
    assert with_existing_run(config_of(workspace, run=names[0])).run == names[0]
    (workspace / "dataset").rename(workspace / "moved")
    with pytest.raises(ConfigError, match=r"and none is known to be this config's, since \S+/dataset holds no dataset: if it was moved, "):
        with_existing_run(config_of(workspace))


def test_a_run_that_is_not_there_is_refused_with_those_that_are(workspace: Path) -> None:
    with pytest.raises(ConfigError, match="runs holds no run yet; run `sparkring train`"):
        with_existing_run(config_of(workspace, run="wide"))
    assert with_run_if_any(config_of(workspace, run="wide")).run is None
    trained(workspace, run="wide")
    with pytest.raises(ConfigError, match="holds no run wise, it holds wide; did you mean 'wide'"):
        with_existing_run(config_of(workspace, run="wise"))


def test_a_named_run_is_one_run_and_the_remedy_of_its_refusal_works(workspace: Path) -> None:
    first = trained(workspace, run="mine")
    assert (first.run, trained(workspace, run="mine").reused) == ("mine", True)
    before = state_of(workspace / "runs")
    with pytest.raises(RunFolderMismatch, match=r"run mine has train.epochs=5, this config says 6; leave run out of the config, or set"):
        trained(workspace, run="mine", train={"epochs": 6})
    assert state_of(workspace / "runs") == before
    assert not trained(workspace, train={"epochs": 6}).reused


def test_a_run_that_never_began_leaves_no_name_behind(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> TrainSummary:
        raise ConfigError("no ring; try again.")

    monkeypatch.setattr(seams.SPARK_RING_RUN, fail)
    with pytest.raises(ConfigError, match="no ring"):
        trained(workspace)
    assert with_run_if_any(config_of(workspace)).run is None


def test_a_given_name_wins_over_the_derived_one(workspace: Path) -> None:
    manifest = Dataset(str(workspace / "dataset")).manifest()
    assert with_run(config_of(workspace, run="mine"), manifest).run == "mine"
    assert with_run(config_of(workspace), manifest).run == name_of(config_of(workspace), manifest)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "x.json", "-x", "a\n", "\u00e4"])
def test_a_name_that_is_no_folder_s_is_refused(workspace: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="run: a run's name has 1 to 100 letters"):
        config_of(workspace, run=name)
    assert config_of(workspace, run="Wide-2.1_b").run_url == f"{workspace}/runs/Wide-2.1_b"  # the control


def test_an_alias_of_the_registry_stands_for_that_model_s_run_but_is_no_name_to_train_under(workspace: Path) -> None:
    run = trained(workspace).run
    facts = {"name": "n", "task": "binary", "run": run, "dataset_url": "d", "dataset_version": 1, "content_id": "c", "files": (),
             "weights_sha256": "w", "split": "test", "rows": 1, "metrics": {}, "intervals": {}, "code_version": "1"}
    registry = Registry(str(workspace))
    with pytest.raises(ModelVersionNotFound, match="has no model version champion, it has none yet"):
        with_existing_run(config_of(workspace).changed(run="champion"))
    registry.promote(registry.register(facts).version, reason="the first")
    assert with_existing_run(config_of(workspace).changed(run="champion")).run == run
    with pytest.raises(ConfigError, match="run=champion is an alias of the registry"):
        train(config_of(workspace).changed(run="champion"))
