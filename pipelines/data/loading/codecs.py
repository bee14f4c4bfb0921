"""From the bytes of a cell to an array: decodes what Petastorm's codecs stored, with numpy and OpenCV alone.

    codec                 a cell holds                                        read by
    scalar                the value itself                                    Arrow
    ndarray               numpy's .npy bytes                                  all rows at once if their headers are equal, else one by one
    compressed_ndarray    numpy's .npz bytes, the array under the name "arr"  zipfile, then as ndarray
    png, jpeg             an image file; colours in OpenCV's order inside     OpenCV

Nothing is ever unpickled: arrays of Python objects are refused. ``spark_jobs/etl/encoding`` writes the cells: arrays.py and
tokens.py those of numbers, images.py those of images.

Headers are read here, not by numpy, which evaluates them as Python source: on Python 3.11 that fails now and then where
several threads do it at once (CPython issue 106905), and a sound cell would be called damaged.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkring.errors import DatasetError
from sparkring.extras import extras_named
from sparkring.pipelines.data.dataset.row_schema import DataField

Array = NDArray[np.generic]
_NPY_HEADER = re.compile(rb"\x93NUMPY(?:\x01\x00..|[\x02\x03]\x00....)"
                         rb"\{'descr': '([^',]+)', 'fortran_order': (True|False), "
                         rb"'shape': \(((?:\d{1,18}, ?)*\d{0,18})\), \} *\n", re.DOTALL)


def uniform_arrays(cells: pa.Array, field: DataField) -> Array | None:
    """Decode a column of .npy cells at once, without copying.

    Args:
        cells: Binary, no nulls, codec ``ndarray``.
        field: Describes the cells; only a field of known shape can be decoded at once.
    Returns:
        (rows, *shape), or None if the cells' headers or lengths differ; then decode them one by one.
    """
    if None in field.shape or not len(cells):
        return None
    offsets, data = _buffers(cells)
    lengths = np.diff(offsets)
    first = data[offsets[0]:offsets[1]]
    header = _npy_header(first.data)
    if header is None or header.fortran_order or (lengths != lengths[0]).any():
        return None
    matrix = data[offsets[0]:offsets[-1]].reshape(len(cells), lengths[0])
    if (matrix[:, :header.length] != first[:header.length]).any():
        return None
    example = decode(first.data, field)
    if matrix.shape[1] != header.length + example.nbytes:  # extra bytes after the values, which decoding a single cell ignores
        return None
    return matrix[:, header.length:].view(example.dtype).reshape(len(cells), *example.shape)


def decode(cell: bytes | memoryview, field: DataField) -> Array:
    """Decode one cell of an encoded field.

    Returns:
        The array, in the field's shape and type; images are (height, width) or (height, width, RGB). It may share the cell's memory.
    Raises:
        DatasetError: the bytes are not of this codec, or have another type or shape than the manifest says.
    """
    assert field.codec != "scalar", f"field {field.name} is not encoded"
    try:
        match field.codec:
            case "ndarray":
                array = _decode_npy(cell)
            case "compressed_ndarray":
                array = _decode_npz(cell)
            case "png" | "jpeg":
                array = _decode_image(cell)
            case _:
                assert_never(field.codec)
    except ImportError:
        raise
    except Exception as error:  # noqa: BLE001 - a damaged cell can end in almost any exception of NumPy, zipfile, zlib and OpenCV
        raise DatasetError(f"field {field.name}: a cell is not {field.codec}: {error}; the file was damaged or holds something else. "
                           "Prepare the dataset again.") from None
    if (array.shape != field.shape and not _fits(array.shape, field.shape)) or array.dtype != field.dtype:
        raise DatasetError(f"field {field.name}: a cell holds {array.dtype} of shape {array.shape}, the manifest says {field.dtype} of "
                           f"shape {field.shape}; prepare the dataset again.")
    return array


def _fits(found: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(found) == len(wanted) and all(one in (None, other) for one, other in zip(wanted, found, strict=True))


def _decode_npy(cell: bytes | memoryview) -> Array:
    header = _npy_header(cell)
    if header is None:  # no array, or not written as numpy.save does today
        array: Array = np.lib.format.read_array(io.BytesIO(cell), allow_pickle=False)
        return array
    values = np.frombuffer(cell, np.dtype(header.descr), count=math.prod(header.shape), offset=header.length)
    return values.reshape(header.shape, order="F" if header.fortran_order else "C")


def _decode_npz(cell: bytes | memoryview) -> Array:
    with zipfile.ZipFile(io.BytesIO(cell)) as archive:
        return _decode_npy(archive.read("arr.npy"))


def _decode_image(cell: bytes | memoryview) -> Array:
    with extras_named():
        import cv2

    image = cv2.imdecode(np.frombuffer(cell, dtype=np.uint8), cv2.IMREAD_UNCHANGED)
    if image is None:
        raise ValueError("OpenCV cannot read it")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB) if image.ndim == 3 else image


@dataclass(frozen=True, slots=True)
class _NpyHeader:
    length: int
    """Bytes before the values."""
    descr: str
    """The type as numpy names it, such as ``<f4``; not checked yet."""
    fortran_order: bool
    shape: tuple[int, ...]


def _npy_header(cell: bytes | memoryview) -> _NpyHeader | None:
    """None if the cell doesn't begin as ``numpy.save`` begins a file.

    Source: NumPy Enhancement Proposal 1, "A simple file format for NumPy arrays".
    """
    found = _NPY_HEADER.match(cell)
    if found is None:
        return None
    descr, fortran_order, shape = found.groups()
    return _NpyHeader(found.end(), descr.decode("ascii", "replace"), fortran_order == b"True",
                      tuple(int(size) for size in shape.split(b",") if size.strip()))


def _buffers(cells: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """(rows + 1,) where each cell begins, and the bytes of all."""
    width = np.dtype(np.int64 if pa.types.is_large_binary(cells.type) else np.int32)
    _, places, data = cells.buffers()
    offsets = np.frombuffer(places, dtype=width, count=len(cells) + 1, offset=cells.offset * width.itemsize)
    return offsets.astype(np.int64), np.frombuffer(data, dtype=np.uint8)
