"""Folds in the config: all of them in one version, or one of them."""

from __future__ import annotations

from typing import Any

import pytest

from sparkring.conf.loading import parse_config
from sparkring.conf.schema import Config
from sparkring.errors import ConfigError
from tests.support.configs import MINIMAL


def _config(split: dict[str, Any], **prepare: Any) -> Config:
    settings = {**MINIMAL["prepare"], **prepare, "split": {"by": "fold", "column": "id", **split}}
    return parse_config({**MINIMAL, "prepare": settings}, origin="test")


def test_without_one_named_all_folds_are_in_the_version() -> None:
    folds = _config({"folds": 2}).prepare.folds
    assert folds is not None
    assert folds.names == ("fold-0", "fold-1")
    assert _config({"folds": 3, "fold": 0}).prepare.folds is None, "the control: one version a fold"


@pytest.mark.parametrize(("split", "prepare", "message"), [
    pytest.param({"folds": 1}, {}, "greater than or equal to 2", id="no fold to train on"),
    pytest.param({"folds": 101}, {}, "folds=101 are more than the 100 that a version may hold; give fewer", id="too many"),
    pytest.param({"folds": 2, "fold": 1}, {}, "folds=2 leave nothing to train on beside a test and a validation fold", id="two of two"),
    pytest.param({"folds": 3, "fold": 1, "test_share": 0.1}, {}, "here fold 1 is the test split; leave one of the two out", id="two tests"),
    pytest.param({"folds": 3}, {"task": "next_token", "label": "", "features": {"tokens": {"column": "t", "document": "d"}}},
                 "one version cannot hold all folds; set prepare.split.fold to prepare one fold at a time", id="texts"),
    pytest.param({"folds": 3}, {"expectations": {"columns": {"km": {"max_psi": 0.1}}}}, "leave max_mean_shift and max_psi out",
                 id="limits of drift")])
def test_folds_that_cannot_be_are_refused(split: dict[str, Any], prepare: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _config(split, **prepare)
