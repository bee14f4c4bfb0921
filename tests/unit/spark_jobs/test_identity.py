"""Whose a run folder is: the settings that make two runs different, and what is said of the first that differs."""

from __future__ import annotations

import pytest

from sparkring.conf.schema import TrainConfig
from sparkring.spark_jobs.run.identity import ABSENT, FREE_TO_CHANGE, Difference, Identity, first_difference

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
