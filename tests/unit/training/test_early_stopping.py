"""Early stopping: which epochs count as better, when the run ends, and what it says."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from sparkring.conf.schema import EarlyStoppingConfig, TrainConfig
from sparkring.errors import DatasetError
from sparkring.pipelines.training.checkpoints.documents import Position
from sparkring.pipelines.training.evaluation.score import score_of
from sparkring.pipelines.training.loop.early_stopping import has_stopped, is_done, judged, why_stopped
from sparkring.pipelines.training.loop.positions import after_evaluation, at_epoch_end


def _trained(scores: Sequence[float], config: EarlyStoppingConfig, *, epochs: int = 20) -> Position:
    """The position at which a run ends whose epochs have these scores; early, or when there are no more scores."""
    position, train = Position(), TrainConfig(epochs=epochs, early_stopping=config)
    for score in scores:
        if is_done(position, train):
            break
        position = judged(after_evaluation(at_epoch_end(position, seconds=0.0)), score, config)
        position = Position.model_validate_json(position.model_dump_json())  # as if resumed from a checkpoint
    return position


@pytest.mark.parametrize(("scores", "min_delta", "epochs", "best"), [
    pytest.param([.5, .4, .41, .4, .3], 0.0, 4, .4, id="an equal value is not better"),
    pytest.param([.5, .4, .41, .39, .4, .38], 0.0, 6, .38, id="a better one begins the count again"),
    pytest.param([.5, .45, .42, .3], 0.1, 3, .5, id="small steps are not better"),
    pytest.param([.5, .45, .39, .38, .37, .1], 0.1, 5, .39, id="but they add up"),
    pytest.param([math.nan, .5, math.nan, .4, .3], 0.0, 5, .3, id="no number is never better"),
    pytest.param([math.nan, math.nan, .1], 0.0, 2, None, id="never a number")])
def test_a_run_ends_once_its_metric_has_not_improved_for_so_many_epochs(
        scores: list[float], min_delta: float, epochs: int, best: float | None) -> None:
    position = _trained(scores, EarlyStoppingConfig(patience_epochs=2, min_delta=min_delta))
    assert (position.epoch, position.best_score) == (epochs, best)


def test_a_run_does_not_end_before_its_last_epoch_is_evaluated_and_never_without_the_section() -> None:
    stale = Position(epoch=3, stale_epochs=9, to_evaluate=True)
    stopping = TrainConfig(early_stopping=EarlyStoppingConfig())
    assert not is_done(stale, stopping)
    assert is_done(stale.model_copy(update={"to_evaluate": False}), stopping)
    assert not is_done(stale.model_copy(update={"to_evaluate": False}), TrainConfig())
    assert not has_stopped(stale, TrainConfig())


def test_the_reason_names_the_best_epoch_and_its_value() -> None:
    config = EarlyStoppingConfig(patience_epochs=2, min_delta=0.01, metric="auc")
    position = _trained([score_of({"loss": 1.0, "auc": auc}, "auc") for auc in (.6, .75, .7, .755)], config)
    assert why_stopped(position, config) == ("ended early, after epoch 4: the held-out auc of 0.7500 in epoch 2 was not improved by more "
                                             "than 0.01 for 2 epochs")


def test_a_metric_that_equal_labels_do_not_have_is_named() -> None:
    with pytest.raises(DatasetError, match=r"validation split has no r2: all its labels are alike; set train\.early_stopping\.metric"):
        score_of({"loss": 1.0, "rmse": 2.0, "mae": 1.5}, "r2")
