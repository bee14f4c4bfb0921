"""``train.strategy``: a word or a section, what it goes together with, and which runs it tells apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.datasets import write_dataset
from sparkring.conf.loading import load_config
from sparkring.conf.schema import TrainConfig
from sparkring.conf.schema.strategy import ExactConfig, LocalSgdConfig, StaleSyncConfig
from sparkring.errors import ConfigError
from sparkring.spark_jobs.recovery.resize import resized
from sparkring.spark_jobs.run.identity import name_of
from tests.support.configs import MINIMAL
from tests.support.training import train_config


@pytest.mark.parametrize(("given", "meant"), [
    ("exact", ExactConfig()), ("local_sgd", LocalSgdConfig()), ({"kind": "local_sgd", "every_steps": 8}, LocalSgdConfig(every_steps=8)),
    ("stale_sync", StaleSyncConfig(bound=4, servers="peers")), ({}, ExactConfig())], ids=str)
def test_a_word_stands_for_its_section(given: Any, meant: object) -> None:
    assert TrainConfig.model_validate({"strategy": given}).strategy == meant


@pytest.mark.parametrize(("before", "overrides", "meant"), [
    ({"kind": "local_sgd", "every_steps": 8}, ["train.strategy.kind=exact"], ExactConfig()),
    ({"kind": "local_sgd", "every_steps": 8}, ["train.strategy.kind=stale_sync"], StaleSyncConfig()),
    ({"kind": "local_sgd", "every_steps": 8}, ["train.strategy=local_sgd"], LocalSgdConfig()),
    ({"kind": "stale_sync", "servers": 1}, ["train.strategy.bound=2"], StaleSyncConfig(bound=2, servers=1)),
    ("stale_sync", ["train.strategy.bound=2"], StaleSyncConfig(bound=2)),
    ("exact", ["train.strategy=stale_sync", "train.strategy.bound=2"], StaleSyncConfig(bound=2))], ids=str)
def test_another_kind_takes_the_place_of_a_strategy_and_the_same_kind_changes_a_key(
        tmp_path: Path, before: Any, overrides: list[str], meant: object) -> None:
    assert load_config({**MINIMAL, "workspace": str(tmp_path), "train": {"strategy": before}}, overrides).train.strategy == meant


def test_a_strategy_that_python_made_keeps_its_kind_under_other_keys(tmp_path: Path) -> None:
    config = train_config(tmp_path)
    made = config.changed(train=config.train.changed(strategy=StaleSyncConfig(bound=2)))
    assert load_config(made, train={"epochs": 2}).train.strategy == StaleSyncConfig(bound=2)
    assert load_config(made, train={"strategy": {"kind": "exact"}}).train.strategy == ExactConfig()


@pytest.mark.parametrize(("servers", "message"), [
    (0, "train.strategy.servers: Input should be 'peers' or greater than 0 (found 0)"),
    ("peer", "train.strategy.servers: Input should be 'peers' or a valid integer, unable to parse string as an integer (found 'peer')")])
def test_a_number_of_servers_that_is_none_is_told_in_one_line(tmp_path: Path, servers: object, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        train_config(tmp_path, train={"strategy": {"kind": "stale_sync", "servers": servers}})
    assert str(raised.value) == f"config test: {message}"


@pytest.mark.parametrize("kind", ["local_sgd", "stale_sync"])
def test_batch_normalisation_is_told_to_need_exact_and_to_set_nothing_that_is_then_refused(tmp_path: Path, kind: str) -> None:
    message = ("model.norm=batch normalises over all rows of a micro-batch, which needs train.strategy: exact, and train.strategy is "
               f"{kind}; set it to exact, or choose a network without batch normalisation")
    with pytest.raises(ConfigError) as raised:
        train_config(tmp_path, model={"kind": "image", "norm": "batch"}, train={"strategy": kind})
    assert str(raised.value) == f"config test: {message}"
    with pytest.raises(ConfigError, match=r"cuts it or its rows; leave train\.parallel out, or set train\.strategy to"):
        train_config(tmp_path, model={"kind": "image", "norm": "batch"}, train={"strategy": kind, "parallel": {"micro_batches": 2}})


def test_a_key_of_another_kind_is_told_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown key train\.strategy\.bound; another kind of train\.strategy has it, so choose that"):
        load_config(train_config(tmp_path), ["train.strategy.bound=2"])


@pytest.mark.parametrize(("asked", "message"), [
    ({"strategy": "hogwild"}, "unknown kind; give exact, local_sgd or stale_sync"),
    ({"strategy": {"kind": "stale_sync", "bound": -1}}, "greater than or equal to 0"),
    ({"strategy": {"kind": "stale_sync", "servers": 2}, "num_ranks": 2}, "servers=2 leaves none of 2 ranks to compute; set it below"),
    ({"strategy": {"kind": "local_sgd", "every_steps": 0}}, "greater than 0"),
    ({"strategy": "local_sgd", "parallel": {"replicas": [1, 1]}}, "strategy=local_sgd has each rank compute with the whole model"),
    ({"strategy": "stale_sync", "parallel": "auto"}, "strategy=stale_sync has each rank compute with the whole model"),
    ({"strategy": "local_sgd", "on_nonfinite": "rollback"}, "ranks learn of one only later; set it to stop or skip")], ids=str)
def test_what_makes_no_sense_is_refused_with_the_reason(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainConfig.model_validate(asked)


def test_a_run_belongs_to_one_strategy_and_exact_runs_keep_the_names_that_they_had(tmp_path: Path) -> None:
    manifest = write_dataset(tmp_path / "dataset", ([30, 20],)).manifest(1)

    def name(**train: Any) -> str:
        return name_of(train_config(tmp_path, train=train), manifest)

    assert name() == name(strategy="exact")
    others = [name(strategy={"kind": "local_sgd", "every_steps": 2}), name(strategy={"kind": "local_sgd", "every_steps": 3}),
              name(strategy="stale_sync")]
    assert len({name(), *others}) == 4


def test_a_ring_that_shrinks_keeps_a_rank_that_computes_beside_those_that_serve() -> None:
    apart = TrainConfig(num_ranks=4, strategy=StaleSyncConfig(servers=2))
    assert [found.num_ranks if found else None for found in (resized(apart, ranks) for ranks in (3, 2, 1))] == [3, None, None]
    peers = TrainConfig(num_ranks=4, strategy=StaleSyncConfig())
    assert resized(peers, 1) == peers.changed(num_ranks=1), "the control"
