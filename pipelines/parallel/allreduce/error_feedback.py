"""Sums in 16 bits with error feedback: what rounding takes from a sent value is kept, and added to the next step's.

    step n       to send  =  gradient + kept             sent = round(to send)        kept = to send - sent

So over the steps everything is sent: what was sent and what is kept equals the gradients. Each rank rounds an element once a step:
when it sends its part of the sum on, or, if it has made the sum, before it gives that to the others. The copies on all ranks are equal.
No checkpoint holds what is kept: a run that resumes has lost one step's rounding.

What is not finite is sent as it is and not kept, so a step that is left out spoils no later one. Small buffers are sent exactly.

Source: Seide et al. 2014, 1-bit SGD; Karimireddy et al. 2019, arXiv:1901.09847; both sides round: Tang et al. 2019, arXiv:1905.05957.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkring.conf.schema import WireType

DTYPES: dict[WireType, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
EXACT_ELEMENTS = 64
"""A buffer of fewer elements is sent exactly: a step's loss and votes, of which 16 bits would save nothing."""


class ErrorFeedback:
    """Of one buffer: rounds what is sent, and keeps the rest."""

    def __init__(self, length: int, dtype: torch.dtype) -> None:
        """Keep nothing yet, of ``length`` elements that travel as ``dtype``."""
        self.dtype = dtype
        self.kept = torch.zeros(length)
        self._has_own = False

    def begin(self, buffer: Tensor) -> None:
        """Begin a step: add what the last one kept."""
        buffer.add_(self.kept)
        self._has_own = False

    def part(self, values: Tensor, first: int) -> Tensor:
        """Parts of a sum as they are sent; keeps what rounding takes.

        Args:
            values: Elements of the buffer, from ``first`` on.
            first: The place of the first one in the buffer.
        """
        sent = values.to(self.dtype)
        kept = torch.sub(values, sent, out=self.kept[first:first + len(values)])
        torch.nan_to_num(kept, nan=0.0, posinf=0.0, neginf=0.0, out=kept)
        return sent

    def whole(self, values: Tensor, first: int) -> Tensor:
        """Sums as they are sent. The first ones in a step are those that this rank has made: it rounds its own copy, too."""
        if self._has_own:
            return values.to(self.dtype)
        self._has_own = True
        sent = self.part(values, first)
        values.copy_(sent)
        return sent


def feedback_of(wire: WireType, length: int) -> ErrorFeedback | None:
    """That of a buffer of ``length`` elements; None if it is sent exactly."""
    return None if wire == "exact" or length < EXACT_ELEMENTS else ErrorFeedback(length, DTYPES[wire])
