"""A message's tensors as flat bytes, however these travel.

    payload   tensor 0 | tensor 1 | ...                                                 each on a 64-byte line
    refusal   the launch's random token | header of the refused message                 in place of a payload
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache

import torch
from torch import Tensor

from sparkring.errors import PipelineShapeError, RingError
from sparkring.pipelines.parallel.transports.tensor_specs import HEADER_BYTES, TensorSpecs, pack_header, unpack_header

CPU = torch.device("cpu")


def pack(specs: TensorSpecs, tensors: Sequence[Tensor], device: torch.device = CPU) -> Tensor:
    """The payload of ``tensors`` as flat uint8 on a device: a single contiguous tensor's own memory, else a copy."""
    if len(tensors) == 1 and specs.sizes[0] == specs.nbytes:
        return flat_bytes(tensors[0].to(device))
    payload = torch.empty(specs.nbytes, dtype=torch.uint8, device=device)
    write(specs, tensors, payload)
    return payload


def write(specs: TensorSpecs, tensors: Sequence[Tensor], payload: Tensor) -> None:
    """Copy ``tensors`` to their places in ``payload``, flat uint8.

    Raises:
        RingError: it is too short for the specs.
    """
    start = _start(specs, payload)
    for tensor, offset, size in zip(tensors, specs.offsets, specs.sizes, strict=True):
        if payload.is_cpu and _lies_as_sent(tensor) and tensor.nbytes == size:
            ctypes.memmove(start + offset, tensor.data_ptr(), size)
        else:
            payload[offset:offset + size].copy_(flat_bytes(tensor))


def copies(specs: TensorSpecs, payload: Tensor, *, pinned: bool = False) -> list[Tensor]:
    """The tensors in ``payload``, flat uint8 on the CPU, copied out of it.

    Args:
        specs: What it holds.
        payload: The payload.
        pinned: Whether the tensors lie in pinned memory, from where a GPU takes them.
    Raises:
        RingError: it is too short for the specs.
    """
    start, tensors = _start(specs, payload), []
    for (dtype, shape), offset, size in zip(specs.parts, specs.offsets, specs.sizes, strict=True):
        tensor = torch.empty(shape, dtype=dtype, pin_memory=pinned)
        ctypes.memmove(tensor.data_ptr(), start + offset, size)
        tensors.append(tensor)
    return tensors


def empty(specs: TensorSpecs, *, pinned: bool = False) -> list[Tensor]:
    """New tensors of ``specs`` on the CPU, ``pinned`` or not, which autograd may use whatever mode they were made in."""
    with torch.inference_mode(mode=False) if torch.is_inference_mode_enabled() else nullcontext():
        return [torch.empty(shape, dtype=dtype, pin_memory=pinned) for dtype, shape in specs.parts]


def as_sent(tensor: Tensor) -> Tensor:
    """A tensor on the CPU whose memory is the tensor's bytes in row-major order: itself, if it is one.

    Raises:
        PipelineShapeError: the tensor is sparse, nested or has no values.
    """
    return tensor if _lies_as_sent(tensor) else flat_bytes(tensor).cpu()


def memory_of(tensor: Tensor) -> memoryview:
    """The memory of a tensor that lies as it is sent and has some; valid while the tensor lives."""
    return memoryview(_bytes(tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


@lru_cache(maxsize=256)
def _bytes(count: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    """The type of so many bytes: to make one takes longer than to send them."""
    return ctypes.c_ubyte * count


def _start(specs: TensorSpecs, payload: Tensor) -> int:
    """The address of a payload on the CPU, once it is known to hold all that the specs describe: copying by address stays within it."""
    if specs.nbytes > payload.numel():
        raise RingError(f"a message between ranks announces {specs.nbytes} bytes and has {payload.numel()}; all ranks must run the same "
                        "version of sparkring.")
    return payload.data_ptr() if payload.is_cpu else 0


def _lies_as_sent(tensor: Tensor) -> bool:
    """Whether a tensor's memory is its bytes in row-major order, so that it can be copied by address: half the time for small ones.

    Zeros that autograd makes may have no memory, and are at address 0.
    """
    return (tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_nested and tensor.is_contiguous()
            and not tensor.is_conj() and not tensor.is_neg() and tensor.data_ptr() != 0)


def read(specs: TensorSpecs, payload: Tensor) -> list[Tensor]:
    """The tensors in ``payload``. They share its memory but are not views, so autograd counts their versions separately."""
    storage, start = payload.untyped_storage(), payload.storage_offset()
    return [torch.empty(0, dtype=dtype, device=payload.device).set_(storage, (start + offset) // dtype.itemsize, shape, _strides(shape))
            for (dtype, shape), offset in zip(specs.parts, specs.offsets, strict=True)]


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a tensor in row-major order."""
    return tuple(math.prod(shape[place + 1:]) for place in range(len(shape)))


def flat_bytes(tensor: Tensor) -> Tensor:
    """The tensor's bytes in row-major order, flat uint8; a copy only if it is not contiguous.

    Raises:
        PipelineShapeError: the tensor is sparse, nested or has no values.
    """
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_nested:
        raise PipelineShapeError(f"a message holds a tensor of {tensor.layout} on {tensor.device}, transports carry dense ones; "
                                 "call to_dense() before it crosses the border.")
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if dense.data_ptr() == 0 and dense.numel():  # zeros that autograd has made without memory
        dense = dense.clone()
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)  # a single element may have any stride and be contiguous


def refusal(specs: TensorSpecs, *, token: bytes, length: int) -> Tensor:
    """The refusal of a message of ``specs``, in place of a payload of ``length`` bytes; its header is cut to fit."""
    text = (token + pack_header(specs))[:length]
    return torch.frombuffer(bytearray(text.ljust(length, b"\0")), dtype=torch.uint8)


def read_refusal(payload: Tensor, *, token: bytes) -> TensorSpecs | None:
    """The refused specs if ``payload``, or its beginning, on the CPU is a refusal, else None; they are empty if the header did not fit.

    A refusal begins with the launch's random token: 16 bytes, with which a payload begins by chance once in 2**128.
    """
    if payload[:len(token)].numpy().tobytes() != token:
        return None
    try:
        return unpack_header(payload[len(token):len(token) + HEADER_BYTES].numpy().tobytes())
    except RingError:
        return TensorSpecs(())
