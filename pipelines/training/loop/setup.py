"""One rank's tools for training: opened once by ``train_rank`` and shared by all parts of the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sparkring.conf.schema import Config
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import DatasetVersion
from sparkring.pipelines.data.loading.loader import Loader
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.events.writer import EventWriter
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.job.layout import Layout
from sparkring.pipelines.training.job.optimizer import learning_rate
from sparkring.pipelines.training.strategies.relaxed.stale_sync import StaleSyncStrategy
from sparkring.pipelines.training.strategies.signals import SignalSource
from sparkring.pipelines.training.strategies.strategy import Strategy


class ReceiptRank(NamedTuple):
    """A rank's place among the ranks that write receipts for the rows of a step."""

    number: int
    """``num_ranks`` on a rank that writes none: another rank reads the same rows."""
    num_ranks: int

    @property
    def writes(self) -> bool:
        """Whether this rank writes receipts."""
        return self.number < self.num_ranks


@dataclass(frozen=True, kw_only=True)
class RankSetup:
    """One rank's tools for one generation of a run."""

    job: TrainJob
    version: DatasetVersion
    layout: Layout | None
    """None if every rank holds the whole model."""
    communicator: Communicator
    strategy: Strategy | StaleSyncStrategy
    events: EventWriter
    signals: SignalSource
    checkpoints: Checkpoints
    train_loader: Loader
    validation_loader: Loader
    receipt_rank: ReceiptRank

    @property
    def config(self) -> Config:
        """The run's config."""
        return self.job.config

    @property
    def manifest(self) -> Manifest:
        """The manifest of the dataset version."""
        return self.version.manifest

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which commits and reports."""
        return self.communicator.context.rank == 0

    @cached_property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of an epoch."""
        return self.train_loader.steps()

    def learning_rate(self, steps_done: int) -> float:
        """The rate of the step that follows ``steps_done`` optimizer steps."""
        train = self.config.train
        return learning_rate(steps_done, total_steps=train.epochs * self.steps_per_epoch, config=train.optimizer,
                             batch_rows=train.step_rows)

    def equal_ranks(self) -> Sequence[Sequence[int]]:
        """Groups of ranks that do the same work."""
        return self.layout.alike() if self.layout else [range(self.communicator.context.size)]
