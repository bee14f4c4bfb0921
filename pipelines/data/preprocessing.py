"""Fitted preprocessing: how a column of the source becomes a number the network sees.

Fitted on the train split only, stored in the manifest and in the model, and the only definition there is: training,
evaluation and scoring all read it. This module holds the facts; ``spark_jobs/etl/encode.py`` turns them into Spark columns.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class _Fitted(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class _Feature(_Fitted):
    column: str
    """Column of the source's rows."""


class NumericFeature(_Feature):
    """Encoded as ``(x - mean) / std``; a null becomes 0, the mean."""

    mean: float
    std: float
    """Standard deviation of the train rows, never 0 (a constant column gets 1)."""
    nulls: int
    """Null train rows."""


class CategoricalFeature(_Feature):
    """Encoded as 1 + position in ``vocabulary``; null, unseen and rare values become 0."""

    vocabulary: tuple[str, ...]
    """Values by falling train frequency, then by name."""

    @property
    def size(self) -> int:
        """How many ids there are, 0 included."""
        return len(self.vocabulary) + 1


class Preprocessing(_Fitted):
    """All features in the order in which the network takes them."""

    numeric: tuple[NumericFeature, ...]
    categorical: tuple[CategoricalFeature, ...]
    train_rows: int
    """Rows that the figures were fitted on."""

    def cardinalities(self) -> tuple[int, ...]:
        """Ids of each category column."""
        return tuple(feature.size for feature in self.categorical)
