"""Held-out rows of the dataset version that a model was trained on: as the network takes them, and as the exported file takes them.

A dataset version holds encoded rows. So the columns that the file takes are worked out backwards: a number from its scaled value and its
range, a text from its id, a pixel from its scaled value. The file then encodes them again, and must reach the network's own answer.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sparkring.errors import DatasetError
from sparkring.models.build import without_dropout
from sparkring.models.inputs import CATEGORICAL, IMAGE, NUMERIC, TOKENS
from sparkring.pipelines.data.dataset.preprocessing import BucketFeature, ImageFeature, NumericFeature, Preprocessing
from sparkring.pipelines.data.dataset.versions import DatasetVersion
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.training.job.model_files import ModelCard
from sparkring.pipelines.training.job.tasks import input_tensors
from sparkring.spark_jobs.exporting.signature import Input, Signature

MOST_ROWS = 1000
MOST_LOGITS = 20_000_000
"""Logits of all rows together: those of tokens take a number for each token of a vocabulary."""
SPLITS = ("test", "validation")
"""The first of these that has rows is taken."""

Floats = NDArray[np.float64]


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
    return HeldOutRows(split, tensors, source_arrays(tensors, signature, card.preprocessing))


def source_arrays(tensors: dict[str, Tensor], signature: Signature, fitted: Preprocessing) -> dict[str, NDArray[Any]]:
    """What the file's inputs may have been, given what they were encoded as."""
    if IMAGE in tensors:
        assert fitted.image is not None
        return {each.name: _pixels(tensors[IMAGE].numpy(), fitted.image, each) for each in signature.inputs}
    if TOKENS in tensors:
        return {TOKENS: tensors[TOKENS].numpy()}
    numbers = dict(zip(fitted.numeric_columns, tensors[NUMERIC].double().numpy().T, strict=True))
    ids = dict(zip((feature.column for feature in fitted.with_ids), tensors[CATEGORICAL].numpy().T, strict=True))
    vocabularies = {feature.column: feature.vocabulary for feature in fitted.categorical}
    arrays: dict[str, NDArray[Any]] = {}
    for each in signature.inputs:
        if each.kind == "text":
            arrays[each.name] = np.array([each.missing, *vocabularies[each.name]], object)[ids[each.name]]
        elif each.kind == "id":
            arrays[each.name] = ids[each.name].copy()
        else:
            arrays[each.name] = _number(each.name, fitted, numbers, ids)
    return arrays


def _number(column: str, fitted: Preprocessing, numbers: dict[str, Floats], ids: dict[str, NDArray[np.int64]]) -> Floats:
    """A number in the source's units, from its scaled value, or in its ranges if it is not scaled; NaN where it was missing."""
    rows = len(next(iter((numbers | ids).values())))
    value: Floats = np.zeros(rows)
    for feature in fitted.numeric:
        if feature.column == column:
            value = _unscaled(feature, numbers[column])
            if feature.indicator:
                value[numbers[feature.indicator] == 1] = np.nan
    for bucket in fitted.buckets:
        if bucket.of == column:
            value = _in_range(value, bucket, ids[bucket.column])
    return value


def _unscaled(feature: NumericFeature, scaled: Floats) -> Floats:
    x = scaled * feature.spread + feature.centre
    return np.expm1(x) if feature.scale == "log1p" else x


def _in_range(value: Floats, bucket: BucketFeature, ids: NDArray[np.int64]) -> Floats:
    """Rounding may have moved a value over the border that it lay on: bring it back."""
    borders = np.array([np.nan, -np.inf, *bucket.edges, np.inf])  # id 0: missing; id k: from borders[k] to below borders[k + 1]
    return np.where(ids == 0, np.nan, np.clip(value, borders[ids], np.nextafter(borders[ids + 1], -np.inf)))


def _pixels(scaled: NDArray[np.float32], image: ImageFeature, each: Input) -> NDArray[np.uint8]:
    mean, std = (np.array(figures)[:, None, None] for figures in (image.mean, image.std))
    channels_last = np.moveaxis(np.rint(255 * (scaled.astype(np.float64) * std + mean)), 1, 3)
    return np.asarray(channels_last, np.uint8).reshape(len(scaled), *each.shape)
