"""What workers and servers say to each other: a word, a few numbers, and tensors.

    worker -> dealer    ASK (votes)                          free for a step
    dealer -> worker    TAKE (step, version)                 or LEAVE (end, votes)
    worker -> server    PULL (version)                       weights of this version or a later one
    server -> worker    WEIGHTS (version, stop) + tensors    stop: whether the server's rank is asked to; the worker votes so, too
    worker -> dealer    READY                                its update is computed
    dealer -> worker    APPLY (number, staleness)            it is the update of this number
    worker -> server    PUSH (number, rate) + gradients      without tensors: the update changes nothing
    worker -> server    BYE                                  nothing follows

The dealer is one of the servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Self

import torch
from torch import Tensor


class Word(IntEnum):
    """The kind of a message."""

    ASK, TAKE, LEAVE, PULL, WEIGHTS, READY, APPLY, PUSH, BYE = range(9)


class Message(NamedTuple):
    """One message."""

    word: Word
    numbers: tuple[float, ...] = ()
    """Exact: float64 holds whole numbers up to 2^53."""
    tensors: Sequence[Tensor] = ()

    def pack(self) -> list[Tensor]:
        """As tensors for a transport: word and numbers in the first one."""
        return [torch.tensor([float(self.word), *self.numbers], dtype=torch.float64), *self.tensors]

    @classmethod
    def unpack(cls, tensors: Sequence[Tensor]) -> Self:
        """The inverse of ``pack``."""
        word, *numbers = tensors[0].tolist()
        return cls(Word(int(word)), tuple(numbers), tensors[1:])
