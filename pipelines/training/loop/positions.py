"""The change of a position with each step and each epoch. Pure."""

from __future__ import annotations

import math

from sparkring.errors import DatasetError
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.training.checkpoints.documents import Position
from sparkring.pipelines.training.strategies.step import StepResult


def after_step(position: Position, batch: Batch, result: StepResult) -> Position:
    """Count one step; a step without an update, or before an exchange of local models, adds its rows but no loss and no weight."""
    counts = result.updated and result.weight
    return position.model_copy(update={
        "step": position.step + 1,
        "steps_done": position.steps_done + 1,
        "loss_sum": position.loss_sum + (result.loss * result.weight if counts else 0.0),
        "weight": position.weight + (result.weight if counts else 0.0),
        "rows": position.rows + batch.global_rows})


def at_epoch_end(position: Position, *, seconds: float) -> Position:
    """The position after an epoch's last step: its totals stay until the epoch has been evaluated."""
    return position.model_copy(update={"epoch": position.epoch + 1, "step": 0, "seconds": seconds, "to_evaluate": True})


def after_evaluation(position: Position) -> Position:
    """The first position of the next epoch."""
    return Position(epoch=position.epoch, steps_done=position.steps_done, receipts=position.receipts, best_score=position.best_score,
                    stale_epochs=position.stale_epochs)


def mean_loss(position: Position) -> float:
    """The mean loss, by their weights, of the epoch's rows that the model learned from; NaN if there are none."""
    return position.loss_sum / position.weight if position.weight else math.nan


def require_exact(position: Position, manifest: Manifest) -> None:
    """Check that an epoch read every row of the train split exactly once: the number of rows and the sum of their hashes.

    Raises:
        DatasetError: some row came twice or not at all.
    """
    split = manifest.splits["train"]
    if (position.rows, position.rows_digest) != (split.rows, split.rows_digest):
        raise DatasetError(
            f"epoch {position.epoch} read {position.rows} rows with digest {position.rows_digest}, the manifest of version "
            f"{manifest.version} says {split.rows} and {split.rows_digest}: some row came twice or not at all. "
            "The files changed after the commit; prepare a new version.")
