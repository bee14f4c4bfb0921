"""Early stopping: how long the held-out metric has not improved, and whether the run ends for that.

    epoch           1     2     3     4     5          patience_epochs = 2
    loss          .50   .40   .41   .40                the run ends after epoch 4, and epoch 2 is the model
    stale_epochs    0     0     1     2

The state is part of the position, and so of every checkpoint: a run that is killed and resumed ends where it would have ended. Rank 0
alone has the metrics; it shares the score, and all ranks decide alike.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sparkring.conf.schema import EarlyStoppingConfig, HeldOutMetric, TrainConfig
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.training.checkpoints.documents import Position
from sparkring.pipelines.training.evaluation.score import score_of, signed


def metric_of(train: TrainConfig) -> HeldOutMetric:
    """The metric by which a run's best epoch is chosen."""
    return train.early_stopping.metric if train.early_stopping else "loss"


def judge(position: Position, validation: Mapping[str, float] | None, *, config: EarlyStoppingConfig,
          communicator: Communicator) -> Position:
    """Count whether the epoch before ``position`` was better; all ranks call this together.

    Args:
        position: The first position of the next epoch.
        validation: The held-out metrics on rank 0, None on the others.
        config: What better means.
        communicator: The ring.
    """
    mine = 0.0 if validation is None else score_of(validation, config.metric)
    score = float(communicator.sum(torch.tensor(mine, dtype=torch.float64), name="evaluation.score"))
    return judged(position, score, config)


def judged(position: Position, score: float, config: EarlyStoppingConfig) -> Position:
    """Count an epoch with this score; NaN is never better."""
    better = score < (position.best_score - config.min_delta if position.best_score is not None else float("inf"))
    return position.model_copy(update={"best_score": score, "stale_epochs": 0} if better else
                               {"stale_epochs": position.stale_epochs + 1})


def has_stopped(position: Position, train: TrainConfig) -> bool:
    """Whether the run ends before its last epoch."""
    return train.early_stopping is not None and position.stale_epochs >= train.early_stopping.patience_epochs


def is_done(position: Position, train: TrainConfig) -> bool:
    """Whether nothing is left to train or to evaluate."""
    return not position.to_evaluate and (position.epoch >= train.epochs or has_stopped(position, train))


def why_stopped(position: Position, config: EarlyStoppingConfig) -> str:
    """The reason in words, for a run that has stopped."""
    metric, by = config.metric.replace("_", " "), f" by more than {config.min_delta:g}" if config.min_delta else ""
    if position.best_score is None:
        return f"ended early, after epoch {position.epoch}: no epoch had a held-out {metric} that is a number"
    best, epoch = signed(position.best_score, config.metric), position.epoch - position.stale_epochs
    since = f"{position.stale_epochs} epoch{'s' if position.stale_epochs > 1 else ''}"
    return (f"ended early, after epoch {position.epoch}: the held-out {metric} of {best:.4f} in epoch {epoch} was not improved{by} for "
            f"{since}")
