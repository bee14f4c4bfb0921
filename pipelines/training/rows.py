"""The rows and tensors of a dataset version that a rank reads, which depend on its place in the layout."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch

from sparkring.conf.schema.strategy import StaleSyncConfig
from sparkring.pipelines.data.dataset.row_schema import ROW_ID, WEIGHT
from sparkring.pipelines.data.dataset.versions import DatasetVersion
from sparkring.pipelines.data.loading.disk_cache import DiskCache
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.data.stores.base import Readable
from sparkring.pipelines.data.stores.local import LocalStore
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.job.layout import Layout
from sparkring.pipelines.training.job.precision import PRECISIONS
from sparkring.pipelines.training.job.tasks import input_tensors, label_tensor
from sparkring.pipelines.training.loop.setup import ReceiptRank
from sparkring.pipelines.training.parameter_server.roles import Roles
from sparkring.pipelines.training.strategies.batch_copies import BatchCopies
from sparkring.pipelines.training.strategies.step import Inputs

EVALUATION_STEPS = 8
"""Training steps whose rows are evaluated in one batch: without gradients they need less memory."""


class RankRows:
    """One rank's view of a dataset version."""

    def __init__(self, job: TrainJob, version: DatasetVersion, layout: Layout | None, context: RankContext) -> None:
        """Read nothing yet; ``layout`` is None if each rank holds the whole model."""
        self._train, self._model, self._lanes = job.config.train, job.config.model, job.lanes
        self._version, self._manifest = version, version.manifest
        self._layout, self._context = layout, context
        strategy = job.config.train.strategy
        self._dealt = Roles.of(context.size, strategy.servers) if isinstance(strategy, StaleSyncConfig) else None
        """The roles of ranks to which whole steps are dealt."""

    def loader(self, split: str) -> Loader:
        """This rank's batches of a split: one a step for the train split, larger ones for the others."""
        train, manifest = self._train, self._manifest
        batch_rows = train.step_rows * (1 if split == "train" else EVALUATION_STEPS)
        config = LoaderConfig(batch_rows=batch_rows, seed=train.seed, lanes=self._lanes, reader_threads=train.reader_threads,
                              memory_mb=train.memory_mb, deadline_s=train.ring.deadline_s,
                              micro_batches=train.num_micro_batches if self._layout else None)
        wanted = self._wanted_tensors()
        tensors = [spec.name for spec in manifest.tensors if spec.name in wanted]
        reader = SplitReader(self._store(split), manifest, split, tensors=tensors)
        replica, num_replicas = (0, 1) if self._dealt and split == "train" else self._replica()
        prepare = BatchCopies(self.inputs()) if self._context.device != "cpu" else None
        return Loader(reader, config, rank=replica, num_ranks=num_replicas, prepare=prepare)

    def inputs(self) -> Inputs:
        """The tensors of a batch that the model and the loss take."""
        return Inputs(names=input_tensors(self._model), label=label_tensor(self._manifest.task), seed=self._train.seed,
                      precision=PRECISIONS[self._train.precision], device=torch.device(self._context.device),
                      weighted=self._manifest.weight is not None)

    def receipt_rank(self) -> ReceiptRank:
        """This rank's place among those that write receipts: the first shards of the first stage's replicas.

        A rank to which whole steps are dealt writes those of its steps, for all lanes.
        """
        if self._dealt is not None:
            return ReceiptRank(0 if self._context.rank in self._dealt.workers else 1, 1)
        if self._layout is None:
            return ReceiptRank(self._context.rank, self._context.size)
        coordinate, count = self._layout.mesh.coordinate(self._context.rank), self._layout.mesh.replicas[0]
        return ReceiptRank(coordinate.replica if coordinate.stage == coordinate.shard == 0 else count, count)

    def _store(self, split: str) -> Readable:
        """The dataset's store, behind a cache on local disk if the config asks for one and the store is remote."""
        train, store = self._train, self._version.dataset.store
        if train.cache_mb is None or isinstance(store, LocalStore):
            return store
        folder = Path(train.cache_folder or tempfile.gettempdir()) / f"sparkring-cache-{os.getuid()}"
        return DiskCache(store, folder, files=self._manifest.splits[split].files, limit_mb=train.cache_mb)

    def _wanted_tensors(self) -> set[str]:
        """The first stage reads the inputs, the last one the labels and weights, those between read nothing."""
        stage = self._layout.mesh.coordinate(self._context.rank).stage if self._layout else 0
        last = self._layout.mesh.num_stages - 1 if self._layout else 0
        inputs = {*input_tensors(self._model), ROW_ID} if stage == 0 else set[str]()
        targets = {label_tensor(self._manifest.task), *([WEIGHT] if self._manifest.weight is not None else [])}
        return inputs | targets if stage == last else inputs

    def _replica(self) -> tuple[int, int]:
        """This rank's replica of its stage, and the number of replicas that share the rows of a step."""
        if self._layout is None:
            return self._context.rank, self._context.size
        coordinate = self._layout.mesh.coordinate(self._context.rank)
        return coordinate.replica, self._layout.mesh.replicas[coordinate.stage]
