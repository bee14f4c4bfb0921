"""Tensors as a safetensors file in pieces: the header, then each tensor's own memory, without a copy.

    8 bytes            length of the header, little-endian
    header             JSON: name -> dtype, shape, first and last byte; filled up with spaces to a multiple of 8
    data               the tensors, those of wider numbers first, so that each is aligned

Source: https://github.com/huggingface/safetensors, section "Format".
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

import torch
from torch import Tensor

_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
           torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}
_ALIGNED = 8

assert sys.byteorder == "little", "safetensors are little-endian, and so must this machine be"


def safetensors_pieces(tensors: Mapping[str, Tensor]) -> list[memoryview]:
    """The pieces of a safetensors file.

    Args:
        tensors: On the CPU and contiguous. The pieces are their memory, so they must not change before the pieces are used.
    """
    header: dict[str, object] = {}
    data: list[memoryview] = []
    start = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        memory = tensor.detach().reshape(-1).view(torch.uint8).numpy().data
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, start + len(memory)]}
        start += len(memory)
        data.append(memory)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return [memoryview(len(text).to_bytes(8, "little") + text), *data]
