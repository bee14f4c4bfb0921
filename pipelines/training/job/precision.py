"""The precision of a run: the type of what a model learns, and the type in which its layers compute.

    float32, float64    one type for everything
    bf16                float32 kept, layers computed in bfloat16 by torch.autocast, block by block (models/blocks.py)

With bf16 these stay float32: parameters, their gradients from the layer that makes them on, sums of gradients over micro-batches
and ranks, the optimizer's state, losses, and what autocast does not cast (in the text model, norms and the residual stream).
Source: Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.1 (master weights).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch


class Precision(NamedTuple):
    """The types of a run."""

    kept: torch.dtype
    """The type of parameters, gradients, optimizer state, and floats that enter the model."""
    computed: torch.dtype | None = None
    """The type in which autocast computes layers; None for ``kept``."""


PRECISIONS: Mapping[str, Precision] = {
    "float32": Precision(torch.float32), "float64": Precision(torch.float64), "bf16": Precision(torch.float32, torch.bfloat16)}
"""By the value of ``train.precision``."""
