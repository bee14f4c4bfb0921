"""The content of a row: the stored fields, and the tensors made from them.

Part of the manifest (manifest.py); knows nothing of files or versions.
"""

from __future__ import annotations

from typing import Literal, get_args

from sparkring.conf.schema import ArrayCodec, ImageCodec, NumberType
from sparkring.pipelines.data.stores.documents import StrictModel

Dtype = Literal[NumberType, "float16"]
"""``float16`` stands in adopted datasets only; prepare writes none."""
Codec = Literal["scalar", ArrayCodec, ImageCodec]
"""How Petastorm stores a field: ScalarCodec, NdarrayCodec, CompressedNdarrayCodec or CompressedImageCodec."""
ARRAY_CODECS: tuple[ArrayCodec, ...] = get_args(ArrayCodec)
IMAGE_CODECS: tuple[ImageCodec, ...] = get_args(ImageCodec)
LABEL, ROW_ID, WEIGHT = "label", "row_id", "weight"
SPLIT_TIME = "split_time"
"""The field of a rolling split that holds each row's time, in microseconds since 1970 (UTC)."""
"""Names of the tensors that are not inputs of the model."""


class DataField(StrictModel):
    """One column of the Parquet files."""

    name: str
    dtype: Dtype
    """Type of one element."""
    shape: tuple[int | None, ...] = ()
    """Shape of one row; None is an axis whose length differs from row to row. Images: (height, width) or (height,
    width, channels)."""
    codec: Codec = "scalar"
    nullable: bool = False


class Augment(StrictModel):
    """Random changes to a train image, drawn from (run seed, epoch, row id), so equal on any number of ranks."""

    flip: bool = False
    """Mirror left to right with probability one half."""
    crop_padding: int = 0
    """Shift by up to this many pixels in each direction, filling with zeros."""


class ImageSpec(StrictModel):
    """Conversion of stored pixels to the network's input: ``(pixel / 255 - mean) / std``, channels first."""

    mean: tuple[float, ...]
    """One per channel."""
    std: tuple[float, ...]
    augment: Augment | None = None
    """Applied to the train split only."""


class Standardisation(StrictModel):
    """Conversion of a number: ``(value - mean) / std``."""

    mean: float
    std: float
    """Above 0."""


class MaskSpec(StrictModel):
    """Masking of a row of tokens (``loading/masking.py``)."""

    mask_id: int
    """Stands where a token is hidden."""
    pad_id: int
    """Fills a row up, and the targets where nothing is to be found; all other stored ids are below it."""
    targets: bool
    """True: the tokens to be found. False: the row that the network sees."""


class TensorSpec(StrictModel):
    """One tensor of a batch, made from one or more fields."""

    name: str
    dtype: Dtype
    fields: tuple[str, ...]
    """The columns, in order."""
    stacked: bool = True
    """True: shape (rows, fields), of scalar fields. False: one field, shape (rows, *shape)."""
    shape: tuple[int, ...] = ()
    """Shape of one row of an unstacked tensor. Images: (channels, height, width)."""
    pad: float | None = None
    """Fills rows of a ragged field up to ``shape``; longer rows are cut. None: rows have that shape."""
    image: ImageSpec | None = None
    """Set if the field is an image."""
    standard: Standardisation | None = None
    """Applied in the tensor's type to a dense tensor."""
    mask: MaskSpec | None = None
    """Set if tokens of the field are masked."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row of the tensor."""
        return (len(self.fields),) if self.stacked else self.shape
