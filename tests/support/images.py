"""Small image files for tests."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray


def write_idx(folder: Path, part: str, images: NDArray[np.uint8], labels: Sequence[int], *, packed: bool = True) -> None:
    """Write a pair of IDX files."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, values in (("images", images), ("labels", np.array(labels, np.uint8))):
        data = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()
        name = f"{part}-{kind}-idx{values.ndim}-ubyte"
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)


def encoded(pixels: NDArray[np.uint8], kind: str = "png") -> bytes:
    """An image file of grey (H, W) or red-green-blue (H, W, 3) pixels."""
    return bytes(cv2.imencode(f".{kind}", pixels[..., ::-1] if pixels.ndim == 3 else pixels)[1])
