"""Random changes to train images that depend on (seed, epoch, row id) alone: the same on any rank, in any batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparkring.pipelines.data.dataset.row_schema import Augment
from sparkring.pipelines.data.order.rowhash import row_bits

Images = NDArray[np.uint8]


def augment(images: Images, row_ids: NDArray[np.int64], how: Augment, *, seed: int, epoch: int) -> Images:
    """Change each image by its row's random bits.

    Args:
        images: (rows, height, width) or (rows, height, width, channels).
        row_ids: (rows,)
        how: The allowed changes.
        seed: The run's seed.
        epoch: The epoch; each has its own bits.
    Returns:
        Images of the same shape.
    """
    bits = row_bits(row_ids, seed=seed, epoch=epoch)
    if how.crop_padding:
        images = _shift(images, bits, how.crop_padding)
    if how.flip:
        mirrored = (bits >> np.uint64(63)).astype(bool)
        images = images.copy()
        images[mirrored] = images[mirrored, :, ::-1]
    return images


def _shift(images: Images, bits: NDArray[np.uint64], most: int) -> Images:
    """Pad each image with ``most`` zeros around it, and crop it at a random position."""
    height, width = images.shape[1:3]
    padded = np.pad(images, ((0, 0), (most, most), (most, most), *[(0, 0)] * (images.ndim - 3)))
    span = np.uint64(2 * most + 1)
    tops, lefts = (bits & np.uint64(0xFFFF)) % span, ((bits >> np.uint64(16)) & np.uint64(0xFFFF)) % span
    shifted = np.empty_like(images)
    for row, (top, left) in enumerate(zip(tops.tolist(), lefts.tolist(), strict=True)):
        shifted[row] = padded[row, top:top + height, left:left + width]
    return shifted
