"""Bytes and operations of each block of a model, counted on tensors without storage: nothing is computed.

A block keeps for its backward pass what autograd saves, apart from parameters. A tensor that two blocks save counts for the first.
Operations are those of matrix products and convolutions, as torch counts them; others count as free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from sparkring.conf.schema import Config
from sparkring.models.blocks import BlockList, StageModule, part_elements
from sparkring.models.build import Shapes
from sparkring.models.inputs import CATEGORICAL, IMAGE, NUMERIC, ROW_SEEDS
from sparkring.pipelines.training.job.tasks import input_tensors

ROWS = 2
"""Rows of the counted micro-batch."""
META = torch.device("meta")


@dataclass(frozen=True, kw_only=True)
class BlockCount:
    """One block; activations, borders and operations are per row."""

    name: str
    parameter_bytes: int
    shared_bytes: Mapping[str, int]
    """Bytes of its tied parts, by name."""
    activation_bytes: float
    border_bytes: float
    forward_flops: float


def random_inputs(config: Config, shapes: Shapes, rows: int, device: torch.device) -> dict[str, Tensor]:
    """Random inputs of the model, in the shapes of the dataset's rows."""
    dtype = precision(config)

    def of(name: str) -> Tensor:
        if name == NUMERIC:
            return torch.randn(rows, shapes.num_numeric, dtype=dtype, device=device)
        if name == CATEGORICAL:
            columns = [torch.randint(ids, (rows,), device=device) for ids in shapes.cardinalities]
            return torch.stack(columns, dim=1) if columns else torch.empty(rows, 0, dtype=torch.int64, device=device)
        if name == IMAGE:
            assert shapes.image is not None
            return torch.randn(rows, *shapes.image, dtype=dtype, device=device)
        if name == ROW_SEEDS:
            return torch.randint(2 ** 62, (rows,), device=device)
        return torch.randint(shapes.vocabulary, (rows, shapes.length), device=device)

    return {name: of(name) for name in input_tensors(config.model)}


def precision(config: Config) -> torch.dtype:
    """The dtype of parameters and activations."""
    return torch.float64 if config.train.precision == "float64" else torch.float32


def count_blocks(blocks: BlockList, inputs: Callable[[int], dict[str, Tensor]], *, dtype: torch.dtype) -> list[BlockCount]:
    """Count each block of a model.

    Args:
        blocks: The whole model.
        inputs: The model's inputs by rows, on the ``META`` device.
        dtype: Type of parameters and activations.
    """
    tied = blocks.shared_parts(range(len(blocks) + 1))
    tensors: Mapping[str, Tensor] = inputs(ROWS)
    saved = _Saved()
    counts = []
    for number, block in enumerate(blocks):
        with META:
            module = StageModule(blocks, first=number, last=number + 1, seed=0).to(dtype=dtype)
        saved.begin(module.parameters())
        with saved.watching(), FlopCounterMode(display=False) as operations:
            tensors = module(tensors)
        sizes = {part: dtype.itemsize * elements for part, elements in part_elements(block).items()}
        counts.append(BlockCount(
            name=block.name, parameter_bytes=sum(size for part, size in sizes.items() if part not in tied),
            shared_bytes={part: size for part, size in sizes.items() if part in tied}, activation_bytes=saved.num_bytes / ROWS,
            border_bytes=sum(_size(tensor) for tensor in tensors.values()) / ROWS, forward_flops=operations.get_total_flops() / ROWS))
    return counts


class _Saved:
    """Counts the bytes that autograd saves, each storage once."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []  # keeps storages alive, so that no address is reused
        self._known: set[int] = set()
        self.num_bytes = 0.0

    def begin(self, parameters: Iterable[Tensor]) -> None:
        """Restart the count for a block; its parameters are not activations."""
        self.num_bytes = 0.0
        for parameter in parameters:
            self._is_new(parameter)

    def watching(self) -> AbstractContextManager[object]:
        """A context in which saved tensors are counted."""
        return saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        if self._is_new(tensor):
            self.num_bytes += _size(tensor)
        return tensor

    def _is_new(self, tensor: Tensor) -> bool:
        address = tensor.untyped_storage()._cdata  # noqa: SLF001 - the storage's identity: without memory it has no data pointer
        if address in self._known:
            return False
        self._known.add(address)
        self._kept.append(tensor)
        return True


def _size(tensor: Tensor) -> int:
    return prod(tensor.shape) * tensor.dtype.itemsize
