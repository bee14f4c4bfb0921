"""In which types a model keeps what it learns and computes its layers.

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
    """Two types."""

    kept: torch.dtype
    """Of parameters, gradients, the optimizer, and floats that enter the model."""
    computed: torch.dtype | None = None
    """Of what gains by fewer bits, where it is another one."""


PRECISIONS: Mapping[str, Precision] = {
    "float32": Precision(torch.float32), "float64": Precision(torch.float64), "bf16": Precision(torch.float32, torch.bfloat16)}
"""By the value of ``train.precision``."""
