"""The columns that the model sees: ``prepare.features``."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sparkring.conf.schema.base.section import LocalPath, Positive, Section
from sparkring.conf.schema.data.derived import BucketConfig, HashConfig, MomentConfig
from sparkring.conf.schema.data.numbers import NumberConfig

ImageCodec = Literal["png", "jpeg"]
ArrayCodec = Literal["ndarray", "compressed_ndarray"]
NumberType = Literal["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float32", "float64"]


class AugmentConfig(Section):
    """Random changes to train images, drawn in each epoch from the run's seed and the row's id."""

    flip: bool = False
    """Mirror left to right with probability one half."""
    crop_padding: Annotated[int, Field(ge=0)] = 0
    """Shift by up to this many pixels in each direction, filling with zeros."""


class ImageConfig(Section):
    """A column of image files: how the dataset stores them, and how the network sees them."""

    column: str
    """A binary column of the query: one file a row, of any kind that OpenCV reads (PNG, JPEG, WebP, TIFF, BMP ...)."""
    channels: Literal[1, 3] = 3
    """1: grey. 3: red, green, blue."""
    size: tuple[Positive, Positive] | None = None
    """(height, width): each image is cropped to these proportions around its middle, then scaled. Default: unchanged;
    then all images must have one size."""
    codec: ImageCodec = "png"
    """How the dataset stores pixels: png without loss, jpeg smaller. Files already in this form keep their bytes."""
    jpeg_quality: Annotated[int, Field(ge=1, le=100)] = 90
    """With the codec jpeg: 100 is the best and the largest."""
    augment: AugmentConfig | None = None
    """Random changes to train images; none by default."""


class TokensConfig(Section):
    """A column of texts: they are joined and cut into rows of equal length. The task says which tokens are predicted."""

    column: str
    """A string column of the query, or a binary one with UTF-8; one document per row."""
    document: str
    """A column of the query that names the document; its hash decides the order in which documents are joined."""
    length: Annotated[int, Field(ge=2)] = 256
    """Tokens of a row."""
    tokenizer: LocalPath | None = None
    """A ``tokenizer.json`` of the tokenizers library. Default: one token per byte."""
    pack_mb: Annotated[float, Field(gt=0)] = 4.0
    """Text that one task joins, in megabytes. Only the last row of each such pack is padded."""


class RawConfig(Section):
    """A column that the dataset keeps unchanged, as a tensor of the same name. It is for your own training loops; the
    shipped networks ignore it.
    """

    column: str
    """A column of the query: a number or boolean, or an array of numbers."""
    dtype: NumberType
    """Type of one number, in the dataset and in the tensor. A number that does not fit stops the job."""
    shape: tuple[Positive | None, ...] = ()
    """Shape of a row's array, in C order; empty for a single number. At most one axis may be null: its length differs
    from row to row."""
    codec: ArrayCodec = "ndarray"
    """How the dataset stores arrays."""
    pad: float | None = None
    """Value that fills ragged arrays up to ``pad_to`` in batches."""
    pad_to: Positive | None = None
    """Length of the null axis in batches; longer arrays are cut."""

    @model_validator(mode="after")
    def _one_ragged_axis(self) -> Self:
        ragged = self.shape.count(None)
        if ragged > 1:
            raise ValueError(f"shape={list(self.shape)} has {ragged} axes that differ from row to row, at most one may; give the "
                             "others a length")
        if (ragged == 1) != (self.pad is not None) or (self.pad is None) != (self.pad_to is None):
            raise ValueError(f"shape={list(self.shape)} has {ragged or 'no'} null axis, found pad={self.pad} and pad_to={self.pad_to}; "
                             "a shape with a null axis needs both, another takes neither")
        return self


class FeaturesConfig(Section):
    """Columns of the query's result that the model sees.

    A name under ``numeric`` and ``categorical`` may be a wildcard such as ``px_*``: it stands for the columns of the query
    that fit, in its order, without row id, label, split column, and those that the same list names.
    """

    numeric: tuple[NumberConfig, ...] = ()
    """Columns that become one float32 each. A name alone is standardised, with the train mean in place of a null; a
    section can change that."""
    categorical: tuple[str, ...] = ()
    """Columns that become one integer id each, from a vocabulary of the train split; id 0 stands for null and unseen
    values."""
    moments: tuple[MomentConfig, ...] = ()
    """Dates and timestamps that become numbers and ids."""
    buckets: tuple[BucketConfig, ...] = ()
    """Numbers that become the id of their range."""
    hashed: tuple[HashConfig, ...] = ()
    """Texts that become an id by their hash."""
    image: ImageConfig | None = None
    """A column of image files."""
    tokens: TokensConfig | None = None
    """A column of texts, for the tasks next_token and masked_tokens; no other feature may be beside it."""
    raw: tuple[RawConfig, ...] = ()
    """Columns that are kept unchanged: numbers, fixed and ragged arrays."""

    @model_validator(mode="after")
    def _some_and_distinct(self) -> Self:
        names = [*self.numbers, *self.categorical, *self.derived, *([self.image.column] if self.image else []),
                 *(raw.column for raw in self.raw)]
        if not names and not self.tokens:
            raise ValueError("there are no features; name at least one column under numeric, categorical, moments, buckets, hashed, image, "
                             "tokens or raw")
        if names and self.tokens:
            raise ValueError(f"tokens stand alone, found {', '.join(names)} beside them; leave one or the other out")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"features named twice: {', '.join(twice)}; keep one of each, or rename a column in prepare.query")
        return self

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns under ``numeric``."""
        return tuple(number.column for number in self.numeric)

    @property
    def derived(self) -> tuple[str, ...]:
        """Columns of the dataset that are computed from others."""
        return (*(name for number in self.numeric if (name := number.indicator_column)),
                *(name for moment in self.moments for name in moment.outputs), *(bucket.output for bucket in self.buckets),
                *(hashed.output for hashed in self.hashed))
