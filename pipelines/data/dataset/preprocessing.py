"""Fitted preprocessing: how a column of the source becomes a number the network sees.

Fitted on the train split only, stored in the manifest and in the model, and the only definition there is: training,
evaluation and scoring all read it. This module holds the facts; ``spark_jobs/etl/encoding/encode.py`` turns them into Spark columns.
"""

from __future__ import annotations

import sys
from typing import Literal

from pydantic import Field

from sparkring.conf.schema import FillBy, NumberPart, Scale, Wave
from sparkring.pipelines.data.stores.documents import StrictModel

LARGEST = (2 - 2**-23) * 2.0**127
"""Of the numbers that a float32 holds."""

ClassType = Literal["string", "tinyint", "smallint", "int", "bigint"]
"""Types that a label of several classes may have."""


class MomentPart(StrictModel):
    """What is taken of a date or timestamp."""

    of: str
    """Column of the source's rows."""
    part: NumberPart
    wave: Wave | None = None
    """Of the part's place in its cycle: ``sin(2 pi (part - first) / period)``; None for the part itself."""
    time_zone: str
    """Whose clocks and calendar a timestamp is read by."""


class _Feature(StrictModel):
    column: str
    """Column of the dataset, and of the source's rows too unless ``source`` says otherwise."""

    @property
    def source(self) -> str:
        """Column of the source's rows that it is made of."""
        return self.column


class _MomentFeature(_Feature):
    moment: MomentPart | None = None
    """Where the value is a part of a moment rather than the column itself."""

    @property
    def source(self) -> str:
        """Column of the source's rows that it is made of."""
        return self.moment.of if self.moment else self.column


class NumericFeature(_MomentFeature):
    """Encoded as ``(x - centre) / spread``. What is no finite number, or is none when it is encoded, is first filled
    in; with ``log1p``, x is ``ln(1 + value)``.
    """

    mean: float
    std: float
    """Standard deviation of the train rows, never 0 (a constant column gets 1)."""
    nulls: int
    """Null train rows."""
    fill: FillBy = "mean"
    """How ``filled_with`` was found."""
    filled_with: float = Field(default_factory=lambda figures: figures["mean"])
    """What a null counts as, in the source's units."""
    scale: Scale = "standard"
    """How ``centre`` and ``spread`` were found."""
    centre: float = Field(default_factory=lambda figures: figures["mean"])
    """What becomes 0: mean, smallest value or median of the train rows, or 0 itself."""
    spread: float = Field(default_factory=lambda figures: figures["std"])
    """How far from it 1 is: the train rows' deviation, range or distance of the quartiles; 1 where that is 0."""
    indicator: str | None = None
    """Column of the dataset that is 1 where the value was filled in, else 0."""

    @property
    def least_and_most(self) -> tuple[float, float]:
        """The values whose encoding a float32 can hold; what lies beyond them counts as a null."""
        if self.scale == "log1p":  # 709.8 is the largest
            return -sys.float_info.max, sys.float_info.max
        reach = min(LARGEST * self.spread, sys.float_info.max)
        return max(self.centre - reach, -sys.float_info.max), min(self.centre + reach, sys.float_info.max)


class CategoricalFeature(_MomentFeature):
    """Encoded as 1 + position in ``vocabulary``; null, unseen and rare values become 0."""

    vocabulary: tuple[str, ...]
    """Values by falling train frequency, then by name."""

    @property
    def size(self) -> int:
        """How many ids there are, 0 included."""
        return len(self.vocabulary) + 1


class BucketFeature(_Feature):
    """Encoded as 1 + how many ``edges`` the value has reached; what is no finite number becomes 0."""

    of: str
    """Column of the source's rows."""
    edges: tuple[float, ...]
    """Ascending; given, or quantiles of the train rows."""

    @property
    def source(self) -> str:
        """Column of the source's rows that it is made of."""
        return self.of

    @property
    def size(self) -> int:
        """How many ids there are, 0 included."""
        return len(self.edges) + 2


class HashFeature(_Feature):
    """Encoded as 1 + XXH64 of the value's text modulo ``ids - 1``; null becomes 0. Nothing is fitted.

    The text is Spark's ``CAST(x AS STRING)`` in UTF-8, and the hash is seeded with XXH64 of the eight little-endian bytes of
    ``seed``, that one seeded with 42, and taken as a signed number: Spark's ``pmod(xxhash64(seed, text), ids - 1)``.
    """

    of: str
    """Column of the source's rows."""
    ids: int
    seed: int

    @property
    def source(self) -> str:
        """Column of the source's rows that it is made of."""
        return self.of

    @property
    def size(self) -> int:
        """How many ids there are, 0 included."""
        return self.ids


class ImageFeature(_Feature):
    """An image of fixed size, stored by ``codec``; the network sees ``(pixel / 255 - mean) / std``, channels first."""

    height: int
    width: int
    channels: Literal[1, 3]
    """1: grey. 3: red, green, blue."""
    codec: Literal["png", "jpeg"]
    mean: tuple[float, ...]
    """A channel's, over all pixels of the train rows, black 0 and white 1."""
    std: tuple[float, ...]
    """A channel's, never 0 (a channel of one value gets 1)."""


class TokensFeature(_Feature):
    """A row of token ids, cut from joined texts."""

    length: int
    """Tokens of a row."""
    vocabulary: int
    """How many ids there are, ``end_id`` and ``pad_id`` included."""
    end_id: int
    """Stands after each document."""
    pad_id: int
    """Fills the last row of a pack up; never predicted."""
    tokenizer_sha256: str | None
    """Of the ``tokenizer.json``; None where a token is a byte."""
    tokens: dict[str, int]
    """Of each split, without padding."""
    text_bytes: dict[str, int]
    """UTF-8 bytes of each split's texts, which the tokens stand for."""
    packs: int = 0
    """Packs of a split at most; those of what is appended are numbered behind them."""


class Preprocessing(StrictModel):
    """All features in the order in which the network takes them, and the label's values."""

    numeric: tuple[NumericFeature, ...]
    categorical: tuple[CategoricalFeature, ...]
    buckets: tuple[BucketFeature, ...] = ()
    hashed: tuple[HashFeature, ...] = ()
    train_rows: int
    """Rows that the figures were fitted on."""
    image: ImageFeature | None = None
    tokens: TokensFeature | None = None
    classes: tuple[str, ...] = ()
    """The label's values in the order of their numbers, for a label of several classes."""
    class_type: ClassType = "string"
    """The label's type in the source, as Spark SQL names it: predicted classes have it too."""

    @property
    def numeric_columns(self) -> tuple[str, ...]:
        """All columns of the dataset that are one number each, in the order in which the network takes them."""
        return (*(feature.column for feature in self.numeric), *(feature.indicator for feature in self.numeric if feature.indicator))

    @property
    def with_ids(self) -> tuple[CategoricalFeature | BucketFeature | HashFeature, ...]:
        """All features that are encoded as an id, in the order in which the network takes them."""
        return (*self.categorical, *self.buckets, *self.hashed)

    def cardinalities(self) -> tuple[int, ...]:
        """Ids of each category column."""
        return tuple(feature.size for feature in self.with_ids)
