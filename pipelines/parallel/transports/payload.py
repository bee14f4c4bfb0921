"""A message between two ranks as flat bytes: what its tensors are (the layout), and the tensors themselves.

    header    magic | number of tensors | per tensor: dtype, dimensions, sizes          at most HEADER_BYTES
    payload   tensor 0 | tensor 1 | ...                                                 each on a 64-byte line
    refusal   the launch's random token | header of what was refused                    in a payload's place

Nothing is pickled, so nothing that arrives is run. Knows nothing of how bytes travel.
"""

from __future__ import annotations

import ctypes
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
"""A header that travels by itself has this size, so that a receiver can post it without knowing what it holds."""
LEAST_BYTES = 256
"""No payload is smaller: a refusal must fit in its place."""
DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2)
"""A dtype's place in this list is its code in a header."""

_MAGIC = 0x53484F50
_MOST_VALUES = 1 << 58
"""Of a tensor that memory could hold; of more, torch could not even count the bytes."""
_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
_HEAD = struct.Struct("<IH")
_TENSOR = struct.Struct("<BB")


@dataclass(frozen=True)
class TensorSpecs:
    """Dtypes and shapes of a message's tensors, in order."""

    parts: tuple[tuple[torch.dtype, tuple[int, ...]], ...]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> TensorSpecs:
        """What ``tensors`` are; PipelineShapeError where one is nested, and has no shape."""
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
        """Where each tensor begins in the payload, in bytes."""
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
    """The header of a message, as short as it gets.

    Raises:
        PipelineShapeError: a dtype that has no code, or so many tensors that the header does not fit HEADER_BYTES.
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
    """The layout that a header tells; what follows the header is not looked at.

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
    """The layout that a ``header_tensor`` tells."""
    return unpack_header(buffer.numpy().tobytes())


def pack(specs: TensorSpecs, tensors: Sequence[Tensor]) -> Tensor:
    """The payload of ``tensors`` as flat uint8 on the CPU: their own memory where one contiguous tensor is all, else a copy."""
    if len(tensors) == 1 and specs.sizes[0] == specs.nbytes:
        return flat_bytes(tensors[0].cpu())
    payload = torch.empty(specs.nbytes, dtype=torch.uint8)
    write(specs, tensors, payload)
    return payload


def write(specs: TensorSpecs, tensors: Sequence[Tensor], payload: Tensor) -> None:
    """Copy ``tensors`` to their places in ``payload``, flat uint8 on the CPU.

    Raises:
        RingError: it is shorter than the layout says.
    """
    start = _start(specs, payload)
    for tensor, offset, size in zip(tensors, specs.offsets, specs.sizes, strict=True):
        if _lies_as_sent(tensor) and tensor.nbytes == size:
            ctypes.memmove(start + offset, tensor.data_ptr(), size)
        else:
            payload[offset:offset + size].copy_(flat_bytes(tensor))


def copies(specs: TensorSpecs, payload: Tensor) -> list[Tensor]:
    """The tensors in ``payload``, flat uint8 on the CPU, copied out of it.

    Raises:
        RingError: it is shorter than the layout says.
    """
    start, tensors = _start(specs, payload), []
    for (dtype, shape), offset, size in zip(specs.parts, specs.offsets, specs.sizes, strict=True):
        tensor = torch.empty(shape, dtype=dtype)
        ctypes.memmove(tensor.data_ptr(), start + offset, size)
        tensors.append(tensor)
    return tensors


def _start(specs: TensorSpecs, payload: Tensor) -> int:
    """Address of a payload that holds all that its layout says, so that copying by address stays within it."""
    if specs.nbytes > payload.numel():
        raise RingError(f"a message between ranks tells of {specs.nbytes} bytes and has {payload.numel()}; all ranks must run the same "
                        "version of sparkring.")
    return payload.data_ptr()


def _lies_as_sent(tensor: Tensor) -> bool:
    """Whether a tensor's memory is its bytes in row-major order, so that they may be copied by address: of small ones it saves half.

    Torch's zeros without memory, which autograd may make, are at address 0.
    """
    return (tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_nested and tensor.is_contiguous()
            and not tensor.is_conj() and not tensor.is_neg() and tensor.data_ptr() != 0)


def read(specs: TensorSpecs, payload: Tensor) -> list[Tensor]:
    """The tensors in ``payload``: they share its memory, but are no views, so that autograd counts their versions apart."""
    storage, start = payload.untyped_storage(), payload.storage_offset()
    return [torch.empty(0, dtype=dtype).set_(storage, (start + offset) // dtype.itemsize, shape, _strides(shape))
            for (dtype, shape), offset in zip(specs.parts, specs.offsets, strict=True)]


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a tensor in row-major order."""
    return tuple(math.prod(shape[place + 1:]) for place in range(len(shape)))


def flat_bytes(tensor: Tensor) -> Tensor:
    """The tensor's bytes in row-major order, flat uint8; a copy only where it is not contiguous.

    Raises:
        PipelineShapeError: it is sparse, nested or has no values.
    """
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_nested:
        raise PipelineShapeError(f"a message holds a tensor of {tensor.layout} on {tensor.device}, transports carry dense ones; "
                                 "call to_dense() before it crosses the border.")
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)  # a single element may have any stride and be contiguous


def refusal(specs: TensorSpecs, *, token: bytes, length: int) -> Tensor:
    """What travels in place of a payload of ``length`` bytes when the sender must not send ``specs``; the header is cut to fit."""
    text = (token + pack_header(specs))[:length]
    return torch.frombuffer(bytearray(text.ljust(length, b"\0")), dtype=torch.uint8)


def read_refusal(payload: Tensor, *, token: bytes) -> TensorSpecs | None:
    """The layout that was refused, if this is a refusal; an empty one if its header did not fit.

    Its first bytes are the launch's random token: 16 bytes that a payload begins with by chance once in 2**128.
    """
    if payload[:len(token)].numpy().tobytes() != token:
        return None
    try:
        return unpack_header(payload[len(token):len(token) + HEADER_BYTES].numpy().tobytes())
    except RingError:
        return TensorSpecs(())
