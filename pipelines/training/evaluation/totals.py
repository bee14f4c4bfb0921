"""From sums over all rows of a split to its metrics: each sum is divided once, so nothing is an average of averages.

Ranks add up their sums in ``evaluate.py``, Spark's tasks in ``spark_jobs/scoring/class_metrics.py``; both end here.
Imports neither torch nor pyspark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sparkring.errors import DatasetError
from sparkring.pipelines.data.dataset.preprocessing import TokensFeature

Metrics = dict[str, Any]
"""Metrics by name, as ``evaluation.json`` holds them."""


def mean_metrics(*, nats: float, hits: int, count: int) -> Metrics:
    """Metrics of ``count`` predictions.

    Args:
        nats: Sum of their cross entropies.
        hits: Predictions whose likeliest answer was the right one.
        count: Rows, or tokens that were predicted; at least 1.
    Returns:
        ``rows`` (``count``), ``loss`` (mean nats) and ``accuracy``.
    """
    return {"rows": count, "loss": nats / count, "accuracy": hits / count}


def class_metrics(*, nats: float, confusion: Sequence[Sequence[int]]) -> Metrics:
    """``mean_metrics`` of a split, and its ``confusion``: rows of each class, by the class that was predicted."""
    hits = sum(row[number] for number, row in enumerate(confusion))
    return mean_metrics(nats=nats, hits=hits, count=sum(map(sum, confusion))) | {"confusion": confusion}


def token_metrics(*, nats: float, hits: int, count: int, tokens: TokensFeature, split: str) -> Metrics:
    """``mean_metrics`` of the predicted tokens of a split and, unless they were masked, ``bits_per_byte`` of its text.

    The cost of masked tokens, each given all the others, is no cost of the text.

    Raises:
        DatasetError: no token was predicted.
    """
    if not count:
        raise DatasetError(f"the {split} split has no token to predict: its rows have no masked or next one; prepare more text.")
    found = mean_metrics(nats=nats, hits=hits, count=count)
    return found if tokens.mask else found | {"bits_per_byte": bits_per_byte(found["loss"], tokens, split)}


def bits_per_byte(nats_per_token: float, tokens: TokensFeature, split: str) -> float:
    """A token loss as bits per byte of UTF-8 text, which compares across tokenizers.

    Tokens that are not predicted (the first one of each row) are taken to cost as much as the others.
    """
    return nats_per_token / math.log(2) * tokens.tokens[split] / tokens.text_bytes[split]
