"""The dtypes and shapes of a message's tensors, and the header in which they travel.

    header    magic | number of tensors | per tensor: dtype, dimensions, sizes          at most HEADER_BYTES

Nothing is pickled, so nothing that arrives is executed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from sparkring.errors import PipelineShapeError, RingError
from sparkring.pipelines.parallel.shared_memory.segment import LINE

HEADER_BYTES = 4096
"""Size of a header that travels by itself: a receiver can post the receive without knowing what the header holds."""
LEAST_BYTES = 256
"""The smallest payload: a refusal must fit in its place."""
DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2)
"""A dtype's place in this list is its code in a header."""

_MAGIC = 0x53484F50
_MOST_VALUES = 1 << 58
"""Most values of a tensor; torch could not count the bytes of more."""
_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
_HEAD = struct.Struct("<IH")
_TENSOR = struct.Struct("<BB")


@dataclass(frozen=True)
class TensorSpecs:
    """Dtypes and shapes of a message's tensors, in order."""

    parts: tuple[tuple[torch.dtype, tuple[int, ...]], ...]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> TensorSpecs:
        """The specs of ``tensors``.

        Raises:
            PipelineShapeError: one is nested, and so has no shape.
        """
        if any(tensor.is_nested for tensor in tensors):
            raise PipelineShapeError("a message holds a nested tensor, transports carry dense ones; call to_padded_tensor() before it "
                                     "crosses the border.")
        return cls(tuple([(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each tensor."""
        return tuple(math.prod(shape) * dtype.itemsize for dtype, shape in self.parts)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The offset of each tensor in the payload, in bytes."""
        ends = [0]
        for size in self.sizes:
            ends.append(ends[-1] + -(-size // LINE) * LINE)
        return tuple(ends[:-1])

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the payload."""
        return max(LEAST_BYTES, self.offsets[-1] + self.sizes[-1] if self.parts else 0)

    def __str__(self) -> str:
        """For an error: ``float32 [4, 8], int64 []``."""
        return ", ".join(f"{str(dtype).removeprefix('torch.')} {list(shape)}" for dtype, shape in self.parts) or "no tensors"


@lru_cache(maxsize=256)
def pack_header(specs: TensorSpecs) -> bytes:
    """The header of a message, without padding.

    Raises:
        PipelineShapeError: a dtype has no code, or there are too many tensors for HEADER_BYTES.
    """
    pieces = [_HEAD.pack(_MAGIC, len(specs.parts))]
    for dtype, shape in specs.parts:
        if dtype not in _CODES:
            raise PipelineShapeError(f"a message holds a tensor of {dtype}, which no transport carries; "
                                     f"send one of {', '.join(str(known).removeprefix('torch.') for known in DTYPES)}.")
        pieces.append(_TENSOR.pack(_CODES[dtype], len(shape)) + struct.pack(f"<{len(shape)}q", *shape))
    header = b"".join(pieces)
    if len(header) > HEADER_BYTES:
        raise PipelineShapeError(f"a message of {len(specs.parts)} tensors has a header of {len(header)} bytes, a transport carries "
                                 f"{HEADER_BYTES}; join some of the tensors before they cross the border.")
    return header


def _is_possible(shape: tuple[int, ...]) -> bool:
    return min(shape, default=0) >= 0 and math.prod(size or 1 for size in shape) <= _MOST_VALUES


@lru_cache(maxsize=256)
def unpack_header(data: bytes) -> TensorSpecs:
    """The specs in a header; bytes behind the header are ignored.

    Raises:
        RingError: this is no header.
    """
    try:
        magic, count = _HEAD.unpack_from(data)
        place, parts = _HEAD.size, []
        for _ in range(count):
            code, num_dims = _TENSOR.unpack_from(data, place)
            shape = struct.unpack_from(f"<{num_dims}q", data, place + _TENSOR.size)
            parts.append((DTYPES[code], shape))
            place += _TENSOR.size + 8 * num_dims
    except (struct.error, IndexError):
        magic, parts = 0, []
    if magic != _MAGIC or not all(_is_possible(shape) for _, shape in parts):
        raise RingError("a message between ranks does not begin as one of ours; all ranks must run the same version of sparkring.")
    return TensorSpecs(tuple(parts))


def header_tensor(specs: TensorSpecs) -> Tensor:
    """The header as HEADER_BYTES of uint8, to travel by itself."""
    return torch.frombuffer(bytearray(pack_header(specs).ljust(HEADER_BYTES, b"\0")), dtype=torch.uint8)


def read_header(buffer: Tensor) -> TensorSpecs:
    """The specs in a ``header_tensor``."""
    return unpack_header(buffer.numpy().tobytes())
