"""Encoded rows, worked out backwards: the columns that an exported file takes, from what a dataset version holds. Pure.

A number comes from its scaled value and its range, a text from its id, a pixel from its scaled value. The file encodes them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkring.models.inputs import CATEGORICAL, IMAGE, NUMERIC, TOKENS
from sparkring.pipelines.data.dataset.preprocessing import BucketFeature, ImageFeature, NumericFeature, Preprocessing
from sparkring.spark_jobs.exporting.signature import Input, Signature

Floats = NDArray[np.float64]


def source_arrays(encoded: Mapping[str, NDArray[Any]], signature: Signature, fitted: Preprocessing) -> dict[str, NDArray[Any]]:
    """What the file's inputs may have been, given what they were encoded as.

    Args:
        encoded: The network's inputs, by their names (``models/inputs.py``).
        signature: Of the file.
        fitted: The figures by which they were encoded.
    """
    if IMAGE in encoded:
        assert fitted.image is not None
        return {each.name: _pixels(encoded[IMAGE], fitted.image, each) for each in signature.inputs}
    if TOKENS in encoded:
        return {TOKENS: encoded[TOKENS]}
    numbers = dict(zip(fitted.numeric_columns, encoded[NUMERIC].astype(np.float64).T, strict=True))
    ids = dict(zip((feature.column for feature in fitted.with_ids), encoded[CATEGORICAL].T, strict=True))
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
