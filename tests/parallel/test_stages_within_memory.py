"""A model that does not fit the memory that a rank may take trains in stages, each of which does. The kernel keeps the limit."""

from __future__ import annotations

import ctypes
import re
import resource
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harness.ranks import run_on_ranks
from sparkring.models.blocks import LOGITS, Block, BlockList
from sparkring.pipelines.parallel.context import RankContext
from tests.support.pipelines import Case, Job, train_pipelined

WIDTH, LAYERS = 1600, 8
LAYER_BYTES = 8 * WIDTH ** 2
"""20 MB: of the weights; as many of gradients, of the buffers where they would be summed, and of momentum."""
BUDGET_BYTES = 26 * LAYER_BYTES
"""More than half of the model takes (16 times a layer's weights, and what comes and goes), less than all of it does (32 times)."""
ROWS = 4
M_MMAP_THRESHOLD = -3
"""Of glibc's malloc.h."""


class WideJob(Job):
    """Wide layers, few rows."""

    def blocks(self) -> BlockList:
        """A layer a block."""
        parts = [{str(number): lambda: nn.Linear(WIDTH, WIDTH)} for number in range(LAYERS)]
        between = (Block(str(number), parts[number]) for number in range(1, LAYERS - 1))
        return BlockList((Block("first", parts[0], reads=("features",)), *between,
                          Block("last", parts[-1], run=_first_two, writes=(LOGITS,))), inputs=("features",))

    def batch(self, step: int) -> dict[str, Tensor]:
        """Random rows."""
        generator = torch.Generator().manual_seed(step)
        return {"features": torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64),
                "label": torch.zeros(ROWS, 2, dtype=torch.float64)}


def _first_two(parts: Sequence[nn.Module], x: Tensor) -> Tensor:
    made: Tensor = parts[0](x)
    return made[:, :2]


def _train_within(context: RankContext, case: Case) -> list[float]:
    """Train where this process may take but so much more memory than it has; the losses."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)  # so that what is freed is free: glibc would keep it, and need more for the next
    found = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found
    limit = int(found[1]) * 1024 + BUDGET_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    (_, losses, _), = train_pipelined(context, WideJob(), [case])
    return losses


def test_a_model_larger_than_a_rank_s_memory_trains_in_stages_and_not_in_one_piece() -> None:
    case = Case((1, 1), "1f1b", micro_batches=2)
    losses, others = run_on_ranks(2, _train_within, case)
    assert losses == others
    assert all(loss > 0 for loss in losses)
    with pytest.raises(AssertionError, match=r"can't allocate memory|Cannot allocate memory|MemoryError"):
        run_on_ranks(1, _train_within, replace(case, replicas=(1,)))
