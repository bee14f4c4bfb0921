"""What the model may look at: ``prepare.features``."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sparkring.conf.schema.derived import BucketConfig, HashConfig, MomentConfig
from sparkring.conf.schema.numbers import NumberConfig
from sparkring.conf.schema.section import Positive, Section


class AugmentConfig(Section):
    """Random changes to train images, drawn anew each epoch from the run's seed and the row's id."""

    flip: bool = False
    """Mirror left to right, every second time."""
    crop_padding: Annotated[int, Field(ge=0)] = 0
    """Shift by up to this many pixels each way; zeros come in."""


class ImageConfig(Section):
    """A column of image files: how they are kept, and how the network sees them."""

    column: str
    """A binary column of the query: one file a row, of any kind that OpenCV reads (PNG, JPEG, WebP, TIFF, BMP ...)."""
    channels: Literal[1, 3] = 3
    """1: grey. 3: red, green, blue."""
    size: tuple[Positive, Positive] | None = None
    """(height, width): the middle of each image in these proportions, scaled. Default: as they are; all must be equal then."""
    codec: Literal["png", "jpeg"] = "png"
    """How the dataset keeps pixels: without loss, or smaller. A file that is so already keeps its bytes."""
    jpeg_quality: Annotated[int, Field(ge=1, le=100)] = 90
    augment: AugmentConfig | None = None
    """Changes of train images; none by default."""


class TokensConfig(Section):
    """A column of texts: joined, cut into rows of equally many tokens, each of which is predicted from those before it."""

    column: str
    """A string column of the query, or a binary one that holds UTF-8: a document a row."""
    document: str
    """A column of the query that names the document; its hash decides the order in which documents are joined."""
    length: Annotated[int, Field(ge=2)] = 256
    """Tokens of a row."""
    tokenizer: str | None = None
    """A ``tokenizer.json`` of the library tokenizers. Default: a token a byte."""
    pack_mb: Annotated[float, Field(gt=0)] = 4.0
    """Text that is joined together, in megabytes: what one task works on. Each ends in one row that padding fills up."""


class RawConfig(Section):
    """A column that the dataset keeps as it is, as a tensor of its own name. The shipped networks do not take it; loops of one's own do."""

    column: str
    """A column of the query: a number or boolean, or an array of numbers."""
    dtype: Literal["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float32", "float64"]
    """Of one number, in the dataset and in the tensor; one that it cannot hold stops the job."""
    shape: tuple[Positive | None, ...] = ()
    """Of a row's array, in C order; empty for a single number. At most one axis may be null: its length differs from row to row."""
    codec: Literal["ndarray", "compressed_ndarray"] = "ndarray"
    """How arrays are kept."""
    pad: float | None = None
    """Fills ragged arrays up to ``pad_to`` in batches."""
    pad_to: Positive | None = None
    """Length of the null axis in batches; longer arrays are cut."""

    @model_validator(mode="after")
    def _one_ragged_axis(self) -> Self:
        ragged = self.shape.count(None)
        if ragged > 1:
            raise ValueError(f"shape={list(self.shape)} has {ragged} axes that differ from row to row, at most one may")
        if (ragged == 1) != (self.pad is not None) or (self.pad is None) != (self.pad_to is None):
            raise ValueError("a shape with a null axis needs pad and pad_to, another takes neither")
        return self


class FeaturesConfig(Section):
    """Columns of the query's result that the model may look at."""

    numeric: tuple[NumberConfig, ...] = ()
    """Columns that become one float32 each: names, standardised and with the train mean for a null, or sections that say otherwise."""
    categorical: tuple[str, ...] = ()
    """Columns that become one integer id each, from a vocabulary of the train split; id 0 is null or never seen."""
    moments: tuple[MomentConfig, ...] = ()
    """Dates and timestamps that become numbers and ids."""
    buckets: tuple[BucketConfig, ...] = ()
    """Numbers that become the id of their range."""
    hashed: tuple[HashConfig, ...] = ()
    """Texts that become an id by their hash."""
    image: ImageConfig | None = None
    """A column of image files."""
    tokens: TokensConfig | None = None
    """A column of texts; it stands alone, for the task next_token."""
    raw: tuple[RawConfig, ...] = ()
    """Columns that are kept as they are: numbers of any width, fixed and ragged arrays."""

    @model_validator(mode="after")
    def _some_and_distinct(self) -> Self:
        names = [*self.numbers, *self.categorical, *self.derived, *([self.image.column] if self.image else []),
                 *(raw.column for raw in self.raw)]
        if not names and not self.tokens:
            raise ValueError("no features: name at least one column under numeric, categorical, moments, buckets, hashed, image, tokens "
                             "or raw")
        if names and self.tokens:
            raise ValueError(f"tokens stand alone, found {', '.join(names)} beside them; leave one or the other out")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"features named twice: {', '.join(twice)}")
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
