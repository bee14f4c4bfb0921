"""Whose a run folder is: the settings that make two runs different, and what is said of the first that differs."""

from __future__ import annotations

import pytest

from sparkring.conf.loading import load_config
from sparkring.conf.schema import ImageModelConfig, TrainConfig
from sparkring.spark_jobs.run.identity import ABSENT, FREE_TO_CHANGE, Difference, Identity, first_difference, normalises_rows

LEARNED = {"epochs", "batch_rows", "seed", "precision", "loss", "huber_delta", "optimizer", "strategy", "early_stopping"}


def test_each_setting_of_training_either_changes_what_is_learned_or_is_free_to_change() -> None:
    assert set(TrainConfig.model_fields) == LEARNED | FREE_TO_CHANGE, "a new key: name it in FREE_TO_CHANGE, or in LEARNED here"
    assert not LEARNED & FREE_TO_CHANGE


@pytest.mark.parametrize(("theirs", "mine", "expected"), [
    pytest.param({"train": {"seed": 1, "optimizer": {"lr": 1}}}, {"train": {"seed": 1, "optimizer": {"lr": 2}}},
                 Difference("train.optimizer.lr", 1, 2), id="another value"),
    pytest.param({"train": {"seed": 1}}, {"train": {"seed": 1, "new": None}}, Difference("train.new", ABSENT, None),
                 id="a key that the older run lacks"),
    pytest.param({"train": {"seed": 1, "old": 3}}, {"train": {"seed": 1}}, Difference("train.old", 3, ABSENT),
                 id="a key that there is no more"),
    pytest.param({"model": {"kind": "text"}}, {"model": "text"}, Difference("model", {"kind": "text"}, "text"), id="a section and a word"),
    pytest.param({"train": {"seed": 1}}, {"train": {"seed": 1}}, None, id="nothing differs"),
])
def test_of_two_runs_the_innermost_key_that_differs_is_named(theirs: Identity, mine: Identity, expected: Difference | None) -> None:
    assert first_difference(theirs, mine) == expected


@pytest.mark.parametrize(("network", "micro_batches", "expected"), [
    pytest.param("resnet18", 4, True, id="a network with batch normalisation"), pytest.param("timm.resnet26", 4, True, id="of a library"),
    pytest.param("resnet18", None, False, id="without micro-batches, which is refused later"),
    pytest.param("lenet5", 4, False, id="without batch normalisation"), pytest.param("wide", 4, False, id="of one's own")])
def test_micro_batches_belong_to_the_run_where_a_network_of_the_catalogue_may_normalise_over_them(
        network: str, micro_batches: int | None, expected: bool) -> None:
    parallel = {} if micro_batches is None else {"micro_batches": micro_batches}
    config = load_config("local/fashion-mnist").changed(
        model=ImageModelConfig(kind="image", network=network), train=TrainConfig.model_validate({"num_ranks": 2, "parallel": parallel}))
    assert normalises_rows(config) is expected
