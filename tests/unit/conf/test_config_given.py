"""What may be given as a config, and the keywords of the jobs that change it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sparkring
from sparkring.conf.loading import ConfigLike, config_of_job, load_config, shipped_configs
from sparkring.conf.schema import Config, TrainConfig
from sparkring.errors import ConfigError, DatasetVersionNotFound
from tests.support.configs import MINIMAL, write


def job(config: ConfigLike, *, spark: object = None, **keys: Any) -> Config:
    """A job about the section train, with a keyword of its own."""
    assert spark is None
    return config_of_job(job, config, keys, section="train")


def test_a_name_a_path_a_mapping_and_a_config_are_all_taken(tmp_path: Path) -> None:
    flights = load_config("base/flights").prepare.model_dump(mode="json")
    path = write(tmp_path, "tiny.yaml", MINIMAL | {"workspace": "/runs", "prepare": flights})
    config = load_config(path)
    assert load_config(config) is config
    assert load_config(Path(path)) == config
    assert load_config(config.model_dump()) == config
    assert load_config("base/flights").prepare == config.prepare


@pytest.mark.parametrize("name", shipped_configs())
def test_a_config_with_other_keys_is_checked_again_and_keeps_the_rest(name: str) -> None:
    config = load_config(name)
    changed = load_config(config, ["train.epochs=7"], train={"seed": 5})
    assert (changed.train.epochs, changed.train.seed) == (7, 5)
    assert changed.model_copy(update={"train": config.train}) == config
    with pytest.raises(ConfigError, match=rf"config {config.name}: train\.epochs: Input should be greater than 0"):
        load_config(config, train={"epochs": 0})


def test_keywords_win_over_set_options_and_are_merged_key_by_key() -> None:
    config = load_config(MINIMAL, ["train.epochs=3", "train.lanes=40"], train={"epochs": 2}, name="mine")
    assert (config.train.epochs, config.train.lanes, config.name) == (2, 40, "mine")
    assert load_config(MINIMAL, train=TrainConfig(epochs=4)).train == TrainConfig(epochs=4)


def test_a_misspelt_keyword_gets_the_message_of_a_misspelt_key() -> None:
    with pytest.raises(ConfigError, match=r"config \(a mapping\): unknown key trian; did you mean 'train'\?"):
        load_config(MINIMAL, trian={"epochs": 2})


def test_keywords_that_a_job_does_not_know_are_keys_of_its_section_or_of_the_config() -> None:
    config = job(MINIMAL, num_ranks=3, train={"lanes": 40}, workspace="runs/other")
    assert (config.train.num_ranks, config.train.lanes, config.workspace) == (3, 40, "runs/other")
    assert job(config) is config


def test_all_keywords_that_are_no_keys_are_told_with_what_is_near() -> None:
    with pytest.raises(ConfigError) as raised:
        job(MINIMAL, num_rank=3, sprak=None, zzz=1)
    assert [line.partition("; it has")[0] for line in str(raised.value).splitlines()] == [
        "job() has 3 problems; correct each of them:", "  no keyword num_rank; did you mean 'num_ranks'?",
        "  no keyword sprak; did you mean 'spark'?", "  no keyword zzz"]


@pytest.mark.parametrize("name", ["prepare", "train", "evaluate", "score", "generate", "report"])
def test_each_public_job_takes_what_load_config_takes(tmp_path: Path, name: str) -> None:
    run = getattr(sparkring, name)
    more: list[Any] = [["a text"]] if name == "generate" else []
    with pytest.raises(ConfigError, match=rf"{name}\(\): no keyword workspaec; did you mean 'workspace'\?"):
        run(MINIMAL, *more, workspaec="runs/x")
    with pytest.raises(ConfigError, match=r"config \(a mapping\): unknown key nmae"):
        run(MINIMAL | {"nmae": "x"}, *more)


def test_a_job_runs_in_the_workspace_that_a_keyword_names(tmp_path: Path) -> None:
    with pytest.raises(DatasetVersionNotFound, match=f"{tmp_path}/mine/dataset has no version 7"):
        sparkring.train(MINIMAL, workspace=tmp_path / "mine", dataset_version=7)
    assert sparkring.report(MINIMAL, workspace=tmp_path / "mine").path.endswith(f"{tmp_path}/mine/report.html")
