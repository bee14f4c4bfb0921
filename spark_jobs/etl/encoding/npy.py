"""Arrays as the bytes that Petastorm's NdarrayCodec stores, a whole column at once.

A value is a file in NumPy's own format, as ``numpy.save`` writes it: a header, the same for all rows of one shape, then
the elements. So a column of equal shapes is one matrix of bytes, built without a loop over rows.
Source: NumPy Enhancement Proposal 1, "A simple file format for NumPy arrays".
"""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def npy_column(values: NDArray[np.generic]) -> pa.BinaryArray:
    """Encode each row of ``values``.

    Args:
        values: (rows, *shape), of a plain numeric type.
    Returns:
        (rows,) binary: what ``numpy.save`` gives for each ``values[i]``.
    """
    rows = len(values)
    payload = np.ascontiguousarray(values).reshape(rows, -1).view(np.uint8) if values.size else np.empty((rows, 0), np.uint8)
    header = np.frombuffer(npy_header(values.shape[1:], values.dtype), np.uint8)
    width = len(header) + payload.shape[1]
    if rows * width >= 2**31:
        raise ValueError(f"{rows} rows of {width} bytes do not fit into one Arrow array of 2 GiB; encode fewer at once")
    matrix = np.empty((rows, width), np.uint8)
    matrix[:, :len(header)] = header
    matrix[:, len(header):] = payload
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(matrix)])


def npy_header(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> bytes:
    """All that ``numpy.save`` writes before the elements of an array of this shape and type, in C order."""
    file = io.BytesIO()
    example = np.zeros(shape, dtype)
    np.save(file, example, allow_pickle=False)
    return file.getvalue()[:len(file.getvalue()) - example.nbytes]
