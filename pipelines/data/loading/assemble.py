"""From the rows that lanes give for a step to the tensors of a batch: join, decode, pad, transform.

    dense rows     -> one array of the tensor's type -> (value - mean) / std if it is a label to standardise
    encoded cells  -> arrays -> padded to one shape if they are ragged
    images         -> augmented (train) -> (pixel / 255 - mean) / std, channels first
    masked tokens  -> what the network sees, or what it has to find; held-out rows always have the masks of seed 0 and epoch 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparkring.errors import DatasetError
from sparkring.pipelines.data.dataset.row_schema import ROW_ID, DataField, ImageSpec, TensorSpec
from sparkring.pipelines.data.loading.augment import augment
from sparkring.pipelines.data.loading.buffer_pool import BufferPool
from sparkring.pipelines.data.loading.buffered_rows import Array, Cells
from sparkring.pipelines.data.loading.codecs import decode
from sparkring.pipelines.data.loading.masking import masked

LaneRows = Mapping[str, Array | Cells]
"""The rows that one lane gives for a step, by tensor name."""
MADE_TOGETHER = 64
"""Cells from which a thread makes rows at a time."""


@dataclass(frozen=True)
class Assembler:
    """Makes batches of one split."""

    specs: tuple[TensorSpec, ...]
    """The tensors to make."""
    fields: Mapping[str, DataField]
    seed: int
    """Seed of the augmentation and of the masks."""
    augmented: bool
    """Whether images are augmented, and the masks of tokens change with the epoch."""
    pool: ThreadPoolExecutor | None = None
    """Threads that make rows of cells; None: the caller's thread does."""
    buffers: BufferPool = field(default_factory=BufferPool)
    """Memory of the tensors."""

    def join(self, pieces: Sequence[LaneRows], *, epoch: int) -> dict[str, Tensor]:
        """Make the tensors of a step from the rows of its lanes, in their order; without lanes, tensors of no rows."""
        if not pieces:
            return {spec.name: torch.empty((0, *spec.row_shape), dtype=getattr(torch, spec.dtype)) for spec in self.specs}
        return {spec.name: self._masked(spec, pieces, epoch) if spec.mask else self._tensor(spec, pieces, epoch) for spec in self.specs}

    def _masked(self, spec: TensorSpec, pieces: Sequence[LaneRows], epoch: int) -> Tensor:
        assert spec.mask is not None
        tokens = self._tensor(spec, pieces, epoch)
        ids = np.concatenate([np.asarray(one[ROW_ID]) for one in pieces])
        seed, epoch = (self.seed, epoch) if self.augmented else (0, 0)
        tokens.numpy()[:] = masked(tokens.numpy(), ids, spec.mask, seed=seed, epoch=epoch)
        return tokens

    def _tensor(self, spec: TensorSpec, pieces: Sequence[LaneRows], epoch: int) -> Tensor:
        taken = [one[spec.name] for one in pieces]
        dense = [piece for piece in taken if not isinstance(piece, list)]
        if len(dense) == len(taken) and not spec.image:
            return self._joined(dense, spec)
        cells: list[bytes | Array] = [cell for piece in taken for cell in piece]  # windows of cells with one layout come as one array
        changes = spec.image.augment if spec.image and self.augmented else None
        ids = np.concatenate([np.asarray(one[ROW_ID]) for one in pieces]) if changes else None
        made = self.buffers.empty((len(cells), *spec.row_shape), spec.dtype)

        def make(first: int) -> None:
            some = slice(first, first + MADE_TOGETHER)
            rows = self._decoded(spec, cells[some])
            if changes and ids is not None:
                rows = augment(rows, ids[some], changes, seed=self.seed, epoch=epoch)
            if spec.image:
                _normalise(rows, spec.image, out=made[some])
            else:
                made[some] = rows

        starts = range(0, len(cells), MADE_TOGETHER)
        for _ in self.pool.map(make, starts) if self.pool else map(make, starts):
            pass
        return torch.from_numpy(made)

    def _joined(self, pieces: Sequence[Array], spec: TensorSpec) -> Tensor:
        """Concatenate pieces in the layout of the first: rows or columns contiguous in memory.

        Values are cast as by ``astype``, e.g. class numbers stored as floats.
        """
        first = pieces[0]
        shape = (sum(map(len, pieces)), *first.shape[1:])
        by_columns = first.ndim == 2 and first.strides[0] < first.strides[1]
        joined = self.buffers.empty(shape[::-1] if by_columns else shape, spec.dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # values beyond float32 become infinite silently, as in torch
            np.concatenate([piece.T if by_columns else piece for piece in pieces], axis=int(by_columns), out=joined, casting="unsafe")
        tensor = torch.from_numpy(joined.T if by_columns else joined)
        return tensor if spec.standard is None else tensor.sub_(spec.standard.mean).div_(spec.standard.std)

    def _decoded(self, spec: TensorSpec, cells: Sequence[bytes | Array]) -> NDArray[Any]:
        """(rows, ...) of cells in the stored type, padded to one shape if they are ragged."""
        stored = self.fields[spec.fields[0]]
        shape = tuple(size for size in stored.shape if size is not None) if spec.pad is None else spec.shape
        if len(shape) != len(stored.shape):
            raise DatasetError(f"tensor {spec.name}: rows of field {stored.name} differ in shape {stored.shape}; "
                               "give it a pad value and a shape.")
        filled = np.full((len(cells), *shape), spec.pad or 0, dtype=stored.dtype)
        for row, cell in enumerate(cells):
            array = decode(cell, stored) if isinstance(cell, bytes) else cell
            if array.shape == shape:
                filled[row] = array
            else:
                within = tuple(slice(0, size) for size in np.minimum(array.shape, shape))
                filled[row][within] = array[within]
        return filled


def _normalise(pixels: NDArray[np.uint8], spec: ImageSpec, *, out: Array) -> None:
    """(rows, height, width[, channels]) of 0..255 -> (rows, channels, height, width) float32, in ``out``."""
    channels_first = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, 3, 1)
    scale = np.array([1 / (255 * std) for std in spec.std], dtype=np.float32)[:, None, None]
    shift = np.array([-mean / std for mean, std in zip(spec.mean, spec.std, strict=True)], dtype=np.float32)[:, None, None]
    np.multiply(channels_first, scale, out=out)
    np.add(out, shift, out=out)
