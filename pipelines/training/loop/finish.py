"""The end of a generation, on rank 0: the best epoch's weights become the run's model, and the driver gets a summary."""

from __future__ import annotations

import math

from sparkring.errors import NotFinite, SparkringError
from sparkring.pipelines.data.stores.retry import retry
from sparkring.pipelines.training.checkpoints.documents import Position
from sparkring.pipelines.training.job.job import TrainSummary
from sparkring.pipelines.training.job.model_files import ModelCard, save_model
from sparkring.pipelines.training.loop.early_stopping import has_stopped, is_done, metric_of, why_stopped
from sparkring.pipelines.training.loop.restore import read_parts
from sparkring.pipelines.training.loop.setup import RankSetup
from sparkring.pipelines.training.strategies.state import weights_of
from sparkring.version import __version__


def finish_run(setup: RankSetup, position: Position, *, resumed_at: int, failed_checkpoints: int) -> TrainSummary:
    """Save the run's model if the run is done.

    Args:
        setup: This rank's tools.
        position: The position at which the generation ended.
        resumed_at: Optimizer steps that were done when it started.
        failed_checkpoints: Checkpoints that it could not write.
    """
    train = setup.config.train
    summary = TrainSummary(steps=position.steps_done, resumed_at=resumed_at, receipts=position.receipts, epochs=position.epoch,
                           failed_checkpoints=failed_checkpoints)
    if not is_done(position, train):
        return summary.model_copy(update={"interrupted": True})
    card = save_best_model(setup)
    why = why_stopped(position, train.early_stopping) if train.early_stopping and has_stopped(position, train) else ""
    return summary.model_copy(update={"best_epoch": card.epoch, "validation": card.validation, "ended_early": why})


def save_best_model(setup: RankSetup) -> ModelCard:
    """Save the weights of the checkpoint with the lowest held-out score.

    Raises:
        NotFinite: the held-out metric was NaN in every epoch.
        SparkringError: no checkpoint of a finished epoch is whole.
    """
    job, manifest = setup.job, setup.manifest
    best = retry(setup.checkpoints.best)
    if best is None or best.document.validation is None:
        scores = retry(setup.checkpoints.scores)
        if scores and all(map(math.isnan, scores)):
            raise NotFinite(f"the held-out {metric_of(setup.config.train)} was NaN in every epoch: the network diverged; lower "
                            "train.optimizer.lr.")
        raise SparkringError(f"{job.run_url} has no whole checkpoint of a finished epoch left; run the same command again.")
    position = best.document.position
    card = ModelCard(
        name=setup.config.name, model=setup.config.model, task=manifest.task, preprocessing=manifest.preprocessing,
        dataset_url=job.dataset_url, dataset_version=job.dataset_version, fold=manifest.fold, content_id=manifest.content_id,
        epoch=position.epoch, step=position.steps_done, validation=best.document.validation, code_version=__version__)
    return save_model(job.run_url, weights_of(read_parts(best.state)), card)
