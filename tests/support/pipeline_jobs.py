"""Models of the tests of stages: a network with a connection that skips blocks, and a decoder whose output matrix is its embedding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from sparkring.models.blocks import LOGITS, Block, BlockList, X
from sparkring.models.image import image_blocks
from sparkring.models.inputs import ROW_SEEDS
from sparkring.models.losses import cross_entropy_sum, next_token_loss_sum
from sparkring.models.text import text_blocks
from tests.support.pipelines import ROWS, Job

WIDTH = 6


class SkipJob(Job):
    """Eight layers; what the second one makes is added once more before the last."""

    def blocks(self) -> BlockList:
        """One linear layer and tanh a block."""
        def layer(units_in: int, units_out: int) -> nn.Module:
            return nn.Sequential(nn.Linear(units_in, units_out), nn.Tanh())

        return BlockList((
            Block("0", {"0": lambda: layer(4, WIDTH)}, reads=("features",)),
            Block("1", {"1": lambda: layer(WIDTH, WIDTH)}, run=lambda parts, x: (parts[0](x), x), writes=(X, "skip")),
            *(Block(str(number), {str(number): lambda: layer(WIDTH, WIDTH)}) for number in range(2, 7)),
            Block("7", {"7": lambda: nn.Linear(WIDTH, 2)}, run=lambda parts, x, skip: parts[0](x + skip), reads=(X, "skip"),
                  writes=(LOGITS,))), inputs=("features",))

    def batch(self, step: int) -> dict[str, Tensor]:
        """Random rows."""
        generator = torch.Generator().manual_seed(step)
        return {"features": torch.randn(ROWS, 4, generator=generator, dtype=torch.float64),
                "label": torch.randn(ROWS, 2, generator=generator, dtype=torch.float64)}


class ImageJob(Job):
    """A small residual network that normalises over the rows of a micro-batch."""

    def blocks(self) -> BlockList:
        """Stem, four residual blocks, three halvings, head."""
        return image_blocks(1, 3, widths=(3, 4, 4, 5), norm="batch")

    def batch(self, step: int) -> dict[str, Tensor]:
        """Random images."""
        generator = torch.Generator().manual_seed(step)
        return {"image": torch.randn(ROWS, 1, 12, 12, generator=generator, dtype=torch.float64),
                "label": torch.randint(0, 3, (ROWS,), generator=generator)}

    def loss_sum(self, outputs: Mapping[str, Tensor], label: Tensor) -> Tensor:
        """Of the classes."""
        return cross_entropy_sum(outputs[LOGITS], label)


class RaggedJob(SkipJob):
    """What its first half hands on is wider in some micro-batches."""

    def blocks(self) -> BlockList:
        """The same blocks; the fifth one takes the mean of what the fourth one repeats."""
        def repeat(parts: Sequence[nn.Module], x: Tensor) -> Tensor:
            return parts[0](x).repeat(1, 1 + int(float(x[0].sum()) * 1e6) % 2)

        def mean(parts: Sequence[nn.Module], x: Tensor) -> Tensor:
            return parts[0](x.unflatten(1, (x.shape[1] // WIDTH, WIDTH)).mean(dim=1))

        blocks = list(super().blocks())
        blocks[3], blocks[4] = replace(blocks[3], run=repeat), replace(blocks[4], run=mean)
        return replace(super().blocks(), blocks=tuple(blocks))


class TorchDropoutJob(SkipJob):
    """The same network with torch's own dropout, whose generator has the same state in every process when a step begins."""

    def blocks(self) -> BlockList:
        """The same blocks; one in each half drops."""
        def drop(parts: Sequence[nn.Module], x: Tensor) -> Tensor:
            return nn.functional.dropout(parts[0](x), 0.25)

        blocks = list(super().blocks())
        blocks[2], blocks[5] = replace(blocks[2], run=drop), replace(blocks[5], run=drop)
        return replace(super().blocks(), blocks=tuple(blocks))

    def batch(self, step: int) -> dict[str, Tensor]:
        """The same rows."""
        torch.manual_seed(step)
        return super().batch(step)


class TextJob(Job):
    """A small decoder with an output matrix of its own, and dropout."""

    tied = False

    def blocks(self) -> BlockList:
        """Embedding, six decoder blocks, head."""
        return text_blocks(11, 5, width=8, layers=6, heads=2, tied=self.tied, dropout=0.25)

    def batch(self, step: int) -> dict[str, Tensor]:
        """Random tokens."""
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(1, 11, (ROWS, 5), generator=generator)
        return {"tokens": tokens, ROW_SEEDS: torch.randint(2 ** 62, (ROWS,), generator=generator), "label": tokens}

    def loss_sum(self, outputs: Mapping[str, Tensor], label: Tensor) -> Tensor:
        """Of the next tokens."""
        return next_token_loss_sum(outputs[LOGITS], label, pad_id=0)
