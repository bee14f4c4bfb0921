"""Dropout whose mask depends on the row and the place in the model, not on the process.

    row seed    64 random bits of (seed of the run, epoch, id of the row); travels with the row from stage to stage
    key         of the row seed and the layer's name in the whole model
    bits        word i of the key's stream, 16 bits for an element of the row
    kept        where those 16 bits, as a number, are at least p * 2**16

So the mask is the same in every cut, on any number of ranks, replicas and shards, with any micro-batches, in a repeated
forward pass, and in a run that resumes from a checkpoint. torch's own dropout draws from one generator per process,
whose state depends on all earlier draws of that process. p is rounded to a multiple of 2**-16.

Source: the streams are SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014,
figure 16 (with Stafford's constants); kept elements are scaled up as in Srivastava et al., "Dropout", JMLR 2014,
section 10.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from sparkring.models.inputs import ROW_SEEDS

ELEMENTS_PER_WORD = 4
LEVELS = 1 << 16
"""Number of values of 16 bits."""
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)
"""SplitMix64's constants as int64."""


class RowDropout(nn.Module):
    """Zeroes a share of each row's elements while training, and scales up the others. Holds no state."""

    def __init__(self, p: float, *, place: str) -> None:
        """Derive the place's bits from its name.

        Args:
            p: Share of the elements that are dropped, 0 <= p < 1.
            place: Name of the layer in the whole model; different places drop different elements.
        """
        super().__init__()
        self.p, self.place = p, place
        self._place_bits = int.from_bytes(hashlib.blake2b(place.encode(), digest_size=8).digest(), "little", signed=True)

    def forward(self, x: Tensor, row_seeds_B: Tensor | None = None) -> Tensor:
        """Return a tensor of the shape of ``x`` (B, ...); the seeds may be None if nothing is dropped."""
        dropped = min(round(self.p * LEVELS), LEVELS - 1)
        if not self.training or not dropped:
            return x
        assert row_seeds_B is not None, f"{self.place} drops by row, and was given no {ROW_SEEDS}"
        keys_B = mix_(row_seeds_B ^ self._place_bits)
        elements = x[:1].numel()
        words_BW = random_words(keys_B, -(-elements // ELEMENTS_PER_WORD))
        kept = words_BW.view(torch.int16)[:, :elements] >= dropped - LEVELS // 2  # signed: from -2**15 up
        return x * kept.view_as(x) * (LEVELS / (LEVELS - dropped))

    def extra_repr(self) -> str:
        """The layer's arguments, for ``repr``."""
        return f"p={self.p:g}, place={self.place!r}"


def random_words(keys_B: Tensor, count: int) -> Tensor:
    """Draw words of 64 random bits.

    Args:
        keys_B: (B,) int64; equal keys give equal words.
        count: Words for each key.
    Returns:
        (B, count) int64.
    """
    return mix_(keys_B[:, None] + torch.arange(1, count + 1, device=keys_B.device) * _GAMMA)


def mix_(words: Tensor) -> Tensor:
    """Spread each int64 over its 64 bits, one to one, in place; returns it. Shifts of int64 keep the sign, hence the masks."""
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        words.bitwise_xor_((words >> shift).bitwise_and_((1 << (64 - shift)) - 1)).mul_(factor)
    return words.bitwise_xor_((words >> 31).bitwise_and_((1 << 33) - 1))
