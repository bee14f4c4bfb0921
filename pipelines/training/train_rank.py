"""One rank of a training job: opens the loop's tools, checks the dataset's files, and runs the loop (loop/training_loop.py)."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from sparkring.conf.schema.strategy import LocalSgdConfig, StaleSyncConfig
from sparkring.models.build import list_blocks
from sparkring.pipelines.data.dataset.versions import Dataset, DatasetVersion
from sparkring.pipelines.parallel.allreduce.gradients import sums_by_sockets
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.events.writer import EventWriter
from sparkring.pipelines.training.job.job import TrainJob, layout_of
from sparkring.pipelines.training.job.layout import Layout
from sparkring.pipelines.training.job.tasks import shapes_of
from sparkring.pipelines.training.loop.setup import RankSetup
from sparkring.pipelines.training.loop.training_loop import TrainingLoop
from sparkring.pipelines.training.rows import RankRows
from sparkring.pipelines.training.start_check import require_committed_files
from sparkring.pipelines.training.strategies.pipelined import PipelinedStrategy
from sparkring.pipelines.training.strategies.relaxed.local_sgd import LocalSgdStrategy
from sparkring.pipelines.training.strategies.relaxed.stale_sync import StaleSyncStrategy
from sparkring.pipelines.training.strategies.signals import SignalSource
from sparkring.pipelines.training.strategies.step import Inputs
from sparkring.pipelines.training.strategies.strategy import DataParallelStrategy, Strategy


class RunFiles(Protocol):
    """Opens the files that a rank writes into the run's folder; ``sparkring chaos`` has one that fails on purpose."""

    def events(self, run_url: str, *, generation: int, rank: int) -> EventWriter:
        """Open this rank's event stream."""
        ...

    def checkpoints(self, run_url: str) -> Checkpoints:
        """Open the run's checkpoints."""
        ...


class PlainRunFiles:
    """The run's files as they are."""

    def events(self, run_url: str, *, generation: int, rank: int) -> EventWriter:
        """See RunFiles."""
        return EventWriter(run_url, generation=generation, rank=rank)

    def checkpoints(self, run_url: str) -> Checkpoints:
        """See RunFiles."""
        return Checkpoints(run_url)


def train_rank(context: RankContext, document: dict[str, Any], *, files: RunFiles | None = None) -> dict[str, Any] | None:
    """Run one rank of a training job; the ring launcher starts it.

    Args:
        context: This rank's place in the ring.
        document: A ``TrainJob``.
        files: Opens the run's events and checkpoints.
    Returns:
        A ``TrainSummary`` as plain values on rank 0, None on the others.
    """
    torch.set_flush_denormal(True)  # weight decay takes idle weights below 1e-38, where a CPU multiplies 100 times as slowly
    files = files or PlainRunFiles()
    job = TrainJob.model_validate(document)
    version = Dataset(job.dataset_url).open(job.dataset_version, fold=job.config.fold)
    layout = layout_of(job.config, version.manifest)
    opened = Communicator(context, gradients_beside=sums_by_sockets(context, job.config.train.ring)) if layout is None else Communicator(
        context, extra_sets=layout.process_sets(context.hosts), messages_by_horovod=layout.messages_by_horovod)
    sources = SignalSource(job.run_url, generation=job.generation, rank=context.rank,
                           save_every_s=job.config.train.checkpoint_s)
    writer = files.events(job.run_url, generation=job.generation, rank=context.rank)
    with writer as events, opened as communicator, sources as signals:
        rows = RankRows(job, version, layout, context)
        train_loader, validation_loader = rows.loader("train"), rows.loader("validation")
        require_committed_files(communicator, version, splits=("train", "validation"))
        setup = RankSetup(job=job, version=version, layout=layout, communicator=communicator, events=events, signals=signals,
                          strategy=_open_strategy(job, version, layout, rows.inputs(), communicator, train_loader.steps()),
                          checkpoints=files.checkpoints(job.run_url), train_loader=train_loader,
                          validation_loader=validation_loader, receipt_rank=rows.receipt_rank())
        summary = TrainingLoop(setup).run()
    return summary.model_dump() if summary else None


def _open_strategy(job: TrainJob, version: DatasetVersion, layout: Layout | None, inputs: Inputs,
                   communicator: Communicator, steps_per_epoch: int) -> Strategy | StaleSyncStrategy:
    """Build this rank's part of the model; all ranks call this at the same point."""
    config, manifest, strategy = job.config, version.manifest, job.config.train.strategy
    if isinstance(strategy, LocalSgdConfig):
        return LocalSgdStrategy(config, manifest, inputs, communicator, strategy=strategy, steps_per_epoch=steps_per_epoch)
    if isinstance(strategy, StaleSyncConfig):
        return StaleSyncStrategy(config, manifest, inputs, communicator, strategy=strategy)
    if layout is None:
        return DataParallelStrategy(config, manifest, inputs, communicator)
    blocks = list_blocks(config.model, shapes_of(manifest.task, manifest.preprocessing))
    return PipelinedStrategy(config, manifest, blocks, layout, inputs, communicator)
