"""Which rows and tensors of a dataset version a rank takes, and as what: by its place in the layout."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch

from sparkring.conf.schema import Config
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.row_schema import ROW_ID
from sparkring.pipelines.data.dataset.versions import Dataset
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
from sparkring.pipelines.training.strategies.step import Inputs

EVALUATED_AT_ONCE = 8
"""Steps of training whose rows are predicted together: no gradients need memory then."""


class RankRows:
    """What one rank reads."""

    def __init__(self, job: TrainJob, layout: Layout | None, context: RankContext) -> None:
        """Look nothing up but the manifest; ``layout`` is None where each rank holds the whole model."""
        self._job, self._layout, self._context = job, layout, context
        self._config: Config = job.config
        self.dataset = Dataset(job.dataset_url)
        self.manifest: Manifest = self.dataset.manifest(job.dataset_version)

    def loader(self, split: str) -> Loader:
        """This rank's batches of a split: those of the train split are steps, others are larger."""
        train = self._config.train
        batch_rows = train.step_rows * (1 if split == "train" else EVALUATED_AT_ONCE)
        config = LoaderConfig(batch_rows=batch_rows, seed=train.seed, lanes=self._job.lanes, reader_threads=train.reader_threads,
                              memory_mb=train.memory_mb, deadline_s=train.ring.deadline_s,
                              micro_batches=train.num_micro_batches if self._layout else None)
        wanted = self._wanted_tensors()
        names = [spec.name for spec in self.manifest.tensors]
        store: Readable = self.dataset.store
        if train.cache_mb is not None and not isinstance(store, LocalStore):
            folder = Path(train.cache_folder or tempfile.gettempdir()) / f"sparkring-cache-{os.getuid()}"
            store = DiskCache(store, folder, files=self.manifest.splits[split].files, limit_mb=train.cache_mb)
        reader = SplitReader(store, self.manifest, split, tensors=[name for name in names if name in wanted])
        index, count = self._dealt()
        return Loader(reader, config, rank=index, num_ranks=count)

    def inputs(self) -> Inputs:
        """What of a batch goes where."""
        train = self._config.train
        return Inputs(names=input_tensors(self._config.model), label=label_tensor(self.manifest.task), seed=train.seed,
                      precision=PRECISIONS[train.precision], device=torch.device(self._context.device))

    def witness(self) -> tuple[int, int]:
        """This rank's number among those that give receipts for the rows of a step, and how many they are; not among them if as high.

        They are the first shards of the first stage's replicas.
        """
        if self._layout is None:
            return self._context.rank, self._context.size
        coordinate, readers = self._layout.mesh.coordinate(self._context.rank), self._layout.mesh.replicas[0]
        return (coordinate.replica if coordinate.stage == coordinate.shard == 0 else readers), readers

    def _wanted_tensors(self) -> set[str]:
        """The first stage takes the inputs, the last one the labels, those between nothing."""
        stage = self._layout.mesh.coordinate(self._context.rank).stage if self._layout else 0
        last = self._layout.mesh.num_stages - 1 if self._layout else 0
        return ({*input_tensors(self._config.model), ROW_ID} if stage == 0 else set()) | (
            {label_tensor(self.manifest.task)} if stage == last else set())

    def _dealt(self) -> tuple[int, int]:
        """Among how many ranks this rank's stage deals the rows of a step, and which of them this one is."""
        if self._layout is None:
            return self._context.rank, self._context.size
        coordinate = self._layout.mesh.coordinate(self._context.rank)
        return coordinate.replica, self._layout.mesh.replicas[coordinate.stage]
