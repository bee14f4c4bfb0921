"""Held-out rows of the dataset version that a model was trained on: as the network takes them, and as the exported file takes them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from sparkring.errors import DatasetError
from sparkring.models.build import without_dropout
from sparkring.pipelines.data.dataset.versions import DatasetVersion
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.training.job.model_files import ModelCard
from sparkring.pipelines.training.job.tasks import input_tensors
from sparkring.spark_jobs.exporting.signature import Signature
from sparkring.spark_jobs.exporting.source_arrays import source_arrays

MOST_ROWS = 1000
MOST_LOGITS = 20_000_000
"""Logits of all rows together: those of tokens take a number for each token of a vocabulary."""
SPLITS = ("test", "validation")
"""The first of these that has rows is taken."""


@dataclass(frozen=True)
class HeldOutRows:
    """Some rows of a held-out split."""

    split: str
    tensors: dict[str, Tensor]
    """The network's inputs, as training reads them."""
    arrays: dict[str, NDArray[Any]]
    """The file's inputs."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.arrays.values())))


def read_held_out(card: ModelCard, version: DatasetVersion, signature: Signature) -> HeldOutRows:
    """Read at most ``MOST_ROWS`` rows, drawn from all over the split.

    Raises:
        DatasetError: there are no held-out rows, or a file is missing or damaged.
    """
    manifest, tokens = version.manifest, card.preprocessing.tokens
    split = next((name for name in SPLITS if name in manifest.splits and manifest.splits[name].rows), None)
    if split is None:
        raise DatasetError(f"version {manifest.version} of {card.dataset_url} has no rows in its {' or '.join(SPLITS)} split, so an "
                           "exported file could not be checked; prepare a version that has some, and train on it.")
    rows = MOST_ROWS if tokens is None else max(2, min(MOST_ROWS, MOST_LOGITS // (tokens.length * tokens.vocabulary)))
    known = {spec.name for spec in manifest.tensors}
    reader = SplitReader(version.dataset.store, manifest, split,
                         tensors=[name for name in input_tensors(without_dropout(card.model)) if name in known])
    loader = Loader(reader, LoaderConfig(batch_rows=rows, seed=0, lanes=1), rank=0, num_ranks=1)
    with closing(loader.epoch(0)) as batches:
        tensors = {name: tensor.clone() for name, tensor in next(batches).tensors.items()}
    return HeldOutRows(split, tensors, source_arrays({name: tensor.numpy() for name, tensor in tensors.items()}, signature,
                                                     card.preprocessing))
