"""The network for images: a small residual convnet.

    image (B, C, H, W) -> conv 3x3 -> norm -> [stage: (halve, except in the first) -> residual block] x len(widths)
                       -> mean over H and W -> linear -> logits (B, K)

    residual block:  x + conv3x3(dropout(relu(norm(conv3x3(relu(norm(x)))))))

Normalisation is over groups of channels of one image. So a row's logits do not depend on the other rows of its batch,
and the ring's gradient equals the serial one for any distribution of rows. With ``norm="batch"`` it is over the rows of
a micro-batch (``batch_norm.py``), and the gradient depends on which rows form a micro-batch.
Source: He et al., "Identity mappings in deep residual networks", ECCV 2016 (the block); Wu and He, "Group
normalization", ECCV 2018; Zagoruyko and Komodakis, "Wide residual networks", BMVC 2016 (where dropout acts).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparkring.conf.schema import Norm
from sparkring.models.batch_norm import StepBatchNorm
from sparkring.models.blocks import LOGITS, Block, BlockList, Factory, X
from sparkring.models.dropout import RowDropout
from sparkring.models.inputs import IMAGE, ROW_SEEDS

CHANNELS_PER_GROUP = 8
"""Channels that are normalised together; for a width that 8 does not divide, the greatest common divisor of both."""


def image_blocks(channels: int, num_outputs: int, *, widths: Sequence[int], norm: Norm = "group", dropout: float = 0.0) -> BlockList:
    """List the network's blocks: the stem, each halving and each residual block, and the head, which makes logits.

    Args:
        channels: C of the images.
        num_outputs: K, the logits of a row; with 1 they are returned as (B,).
        widths: Channels of each stage; every stage but the first halves height and width.
        norm: ``group`` normalises over groups of channels of a row, ``batch`` over the rows of a micro-batch.
        dropout: Share dropped inside each residual block; above 0 the network takes ``row_seeds`` (B,), too.
    """
    seeds = (ROW_SEEDS,) if dropout else ()
    made: list[tuple[Factory, tuple[str, ...]]] = []
    for before, width in zip((0, *widths), widths, strict=False):
        if before:
            made.append((partial(nn.Conv2d, before, width, 3, stride=2, padding=1, bias=needs_bias(norm)), (X,)))
        made.append((partial(ResidualBlock, width, norm, dropout=dropout, name=f"stages.{len(made)}"), (X, *seeds)))
    head: dict[str, Factory] = {"norm": partial(_norm, widths[-1], norm), "head": partial(nn.Linear, widths[-1], num_outputs)}
    return BlockList((
        Block("stem", {"stem": partial(nn.Conv2d, channels, widths[0], 3, padding=1, bias=needs_bias(norm))}, reads=(IMAGE,)),
        *(Block(f"stages.{place}", {f"stages.{place}": make}, reads=reads) for place, (make, reads) in enumerate(made)),
        Block("head", head, run=_pooled_logits, writes=(LOGITS,))), inputs=(IMAGE, *seeds))


class ResidualBlock(nn.Module):
    """Two normalised 3x3 convolutions, whose result is added to the input."""

    def __init__(self, width: int, norm: Norm = "group", *, dropout: float = 0.0, name: str = "") -> None:
        super().__init__()
        bias = needs_bias(norm)
        self.norm1, self.conv1 = _norm(width, norm), nn.Conv2d(width, width, 3, padding=1, bias=bias)
        self.norm2, self.conv2 = _norm(width, norm), nn.Conv2d(width, width, 3, padding=1, bias=bias)
        self.dropout = RowDropout(dropout, place=name)

    def forward(self, x_BCHW: Tensor, *row_seeds_B: Tensor) -> Tensor:
        """Return a tensor of the input's shape; with dropout it takes the rows' seeds, too."""
        hidden = self.conv1(functional.relu(self.norm1(x_BCHW)))
        changed: Tensor = x_BCHW + self.conv2(self.dropout(functional.relu(self.norm2(hidden)), *row_seeds_B))
        return changed


def _pooled_logits(parts: Sequence[nn.Module], x_BCHW: Tensor) -> Tensor:
    norm, head = parts
    logits: Tensor = head(torch.relu(norm(x_BCHW)).mean(dim=(2, 3)))
    return logits.squeeze(1) if logits.shape[1] == 1 else logits


def needs_bias(norm: Norm) -> bool:
    """Whether convolutions have a bias. Batch normalisation subtracts it, so Adam would follow the noise of its
    gradient.
    """
    return norm == "group"


def _norm(width: int, norm: Norm) -> nn.Module:
    return StepBatchNorm(width) if norm == "batch" else nn.GroupNorm(width // math.gcd(width, CHANNELS_PER_GROUP), width)
