"""Fitted preprocessing: how a column of the source becomes a number that the network takes.

It is fitted on the train split only, and stored in the manifest and in the model. Training, evaluation and scoring all
read this one definition. ``spark_jobs/etl/encoding/table_features.py`` turns it into Spark columns, ``pandas_rows.py`` into arrays.
"""

from __future__ import annotations

import sys
from typing import Literal

from pydantic import Field

from sparkring.conf.schema import FillBy, ImageCodec, NumberPart, Scale, Wave
from sparkring.pipelines.data.dataset.row_schema import Standardisation
from sparkring.pipelines.data.stores.documents import StrictModel

LARGEST = (2 - 2**-23) * 2.0**127
"""The largest finite float32."""

CYCLES = {"quarter": (1, 4), "month": (1, 12), "day": (1, 31), "day_of_week": (1, 7), "day_of_year": (1, 365.25),
          "hour": (0, 24), "minute": (0, 60), "second": (0, 60)}
"""First value and period of the parts of a moment that have a wave."""

ClassType = Literal["string", "tinyint", "smallint", "int", "bigint"]
"""Types that a label of several classes may have."""


class MomentPart(StrictModel):
    """A part of a date or timestamp that is the value of a feature, e.g. its hour."""

    of: str
    """Column of the source's rows."""
    part: NumberPart
    wave: Wave | None = None
    """The sine or cosine of ``2 pi (part - first) / period``, the part's place in its cycle; None for the part itself."""
    time_zone: str
    """The time zone in which a timestamp is read."""


class _Feature(StrictModel):
    column: str
    """Column of the dataset, and of the source's rows too unless ``source`` says otherwise."""

    @property
    def source(self) -> str:
        """Column of the source's rows that it is made of."""
        return self.column


class _MomentFeature(_Feature):
    moment: MomentPart | None = None
    """The part of a moment that is the value; None if the value is the column itself."""

    @property
    def source(self) -> str:
        """Column of the source's rows that it is made of."""
        return self.moment.of if self.moment else self.column


class NumericFeature(_MomentFeature):
    """Encoded as ``(x - centre) / spread``; with ``log1p``, x is ``ln(1 + value)``.

    A value that is not a finite number, or whose encoding is not, is replaced by ``filled_with`` first.
    """

    mean: float
    std: float
    """Standard deviation of the train rows, never 0 (a constant column gets 1)."""
    nulls: int
    """Null train rows."""
    fill: FillBy = "mean"
    """How ``filled_with`` was chosen."""
    filled_with: float = Field(default_factory=lambda figures: figures["mean"])
    """The value that replaces a null, in the source's units."""
    scale: Scale = "standard"
    """How ``centre`` and ``spread`` were chosen."""
    centre: float = Field(default_factory=lambda figures: figures["mean"])
    """The x that is encoded as 0: mean, smallest value or median of the train rows, or 0 itself."""
    spread: float = Field(default_factory=lambda figures: figures["std"])
    """Distance from ``centre`` to the x that is encoded as 1: the train rows' deviation, range, or distance of the
    quartiles; 1 if that is 0."""
    indicator: str | None = None
    """Column of the dataset that is 1 if the value was filled in, else 0."""

    @property
    def least_and_most(self) -> tuple[float, float]:
        """The smallest and the largest value that a float32 holds once encoded; values beyond count as nulls."""
        if self.scale == "log1p":  # of a float64 the logarithm is at most 709.8
            return -sys.float_info.max, sys.float_info.max
        reach = min(LARGEST * self.spread, sys.float_info.max)
        return max(self.centre - reach, -sys.float_info.max), min(self.centre + reach, sys.float_info.max)


class CategoricalFeature(_MomentFeature):
    """Encoded as 1 + position in ``vocabulary``; null, unseen and rare values become 0."""

    vocabulary: tuple[str, ...]
    """Values by falling train frequency, then by name."""

    @property
    def size(self) -> int:
        """Number of ids, including 0."""
        return len(self.vocabulary) + 1


class BucketFeature(_Feature):
    """Encoded as 1 + the number of ``edges`` at or below the value; a value that is not a finite number becomes 0."""

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
        """Number of ids, including 0."""
        return len(self.edges) + 2


class HashFeature(_Feature):
    """Encoded as 1 + XXH64 of the value's text modulo ``ids - 1``; null becomes 0. Nothing is fitted.

    The text is Spark's ``CAST(x AS STRING)`` in UTF-8. In Spark the id is ``1 + pmod(xxhash64(seed, text), ids - 1)``:
    XXH64 of the text as a signed number, seeded with XXH64 of the eight little-endian bytes of ``seed``, that one seeded
    with 42.
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
        """Number of ids, including 0."""
        return self.ids


class ImageFeature(_Feature):
    """An image of fixed size, stored by ``codec``; the network sees ``(pixel / 255 - mean) / std``, channels first."""

    height: int
    width: int
    channels: Literal[1, 3]
    """1: grey. 3: red, green, blue."""
    codec: ImageCodec
    jpeg_quality: int = 90
    """Of the files that prepare encoded as JPEG; images that are scored get the same."""
    mean: tuple[float, ...]
    """Mean of each channel over all pixels of the train rows, from 0 (black) to 1 (white)."""
    std: tuple[float, ...]
    """Standard deviation of each channel, never 0 (a constant channel gets 1)."""


class MaskFeature(StrictModel):
    """What masking takes beside a row's tokens."""

    mask_id: int
    """Stands where a token is hidden; the id after the padding's, so that no stored row has it."""
    row_id: str
    """The dataset's column of row ids, on which the masks depend."""


class TokensFeature(_Feature):
    """A row of token ids, cut from joined texts."""

    length: int
    """Tokens of a row."""
    vocabulary: int
    """Number of ids, including those of end, padding and mask."""
    end_id: int
    """Follows each document."""
    pad_id: int
    """Fills the last row of a pack; never predicted."""
    tokenizer_sha256: str | None
    """SHA-256 of the ``tokenizer.json``; None if a token is a byte."""
    tokens: dict[str, int]
    """Tokens of each split, without padding."""
    text_bytes: dict[str, int]
    """UTF-8 bytes of the texts of each split."""
    packs: int = 0
    """Largest number of packs in a split; the packs of an append are numbered after them."""
    mask: MaskFeature | None = None
    """Of the task masked_tokens."""


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
    label: Standardisation | None = None
    """For a label that is a number: mean and deviation of the train rows. The network predicts standardised labels."""

    @property
    def numeric_columns(self) -> tuple[str, ...]:
        """All columns of the dataset that are one number each, in the order in which the network takes them."""
        return (*(feature.column for feature in self.numeric), *(feature.indicator for feature in self.numeric if feature.indicator))

    @property
    def with_ids(self) -> tuple[CategoricalFeature | BucketFeature | HashFeature, ...]:
        """All features that are encoded as ids, in the order in which the network takes them."""
        return (*self.categorical, *self.buckets, *self.hashed)

    def cardinalities(self) -> tuple[int, ...]:
        """Ids of each category column."""
        return tuple(feature.size for feature in self.with_ids)
