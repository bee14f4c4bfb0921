"""Texts that a decoder goes on with, token by token: what it sees, which token it takes, when a text ends. Knows nothing of ranks.

    prompts -> window (B, T): each open text's last tokens -> the decoder -> logits -> choose (B,) -> add -> window ...

Each token is the likeliest, or drawn with a temperature; what is drawn for a text depends on the seed, the text's number and the
token's place, and on nothing else. Of a text longer than the rows that the decoder was trained on, it sees the end. Every pass
computes the whole window anew: nothing is kept between tokens.
Source: drawing by the largest of logits with Gumbel noise: Gumbel, "Statistical theory of extreme values", 1954; Maddison et al.,
"A* sampling", NeurIPS 2014, section 2.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkring.models.dropout import random_words


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How texts go on."""

    max_tokens: int
    """New tokens of a text at most."""
    temperature: float = 0.0
    """0 takes the likeliest token; 1 draws as the decoder predicts; less is more sure of itself."""
    seed: int = 0
    """Of what is drawn."""


@dataclass(frozen=True, kw_only=True)
class TokenIds:
    """What the decoder's rows are made of."""

    length: int
    """T, tokens of a row."""
    end_id: int
    """Ends a document."""
    pad_id: int
    """Fills rows up, and is never taken."""


class Texts:
    """Texts that are being gone on with."""

    def __init__(self, prompts: Sequence[Sequence[int]], ids: TokenIds, sampling: Sampling) -> None:
        """Begin.

        Args:
            prompts: Tokens of each text; an empty one begins a new document.
            ids: The decoder's.
            sampling: How to go on.
        """
        self._texts = [list(prompt) or [ids.end_id] for prompt in prompts]
        self._ids, self._sampling = ids, sampling
        self.added: list[list[int]] = [[] for _ in prompts]
        """New tokens of each text; the last one is ``end_id`` where it ended by itself."""

    @property
    def open(self) -> list[int]:
        """Numbers of the texts that go on."""
        return [number for number, tokens in enumerate(self.added)
                if len(tokens) < self._sampling.max_tokens and tokens[-1:] != [self._ids.end_id]]

    def window(self) -> Tensor:
        """(B, T) the last tokens of the open texts, filled up behind; T is as long as the longest of them needs."""
        seen = [self._texts[number][-self._ids.length:] for number in self.open]
        window = torch.full((len(seen), max(map(len, seen))), self._ids.pad_id)
        for row, tokens in enumerate(seen):
            window[row, :len(tokens)] = torch.tensor(tokens)
        return window

    def choose(self, logits_BTV: Tensor) -> Tensor:
        """(B,) the next token of each open text, from the decoder's answer to the window."""
        last = [min(len(self._texts[number]), self._ids.length) - 1 for number in self.open]
        logits_BV = logits_BTV[torch.arange(len(last)), last].double().cpu()
        logits_BV[:, self._ids.pad_id] = -torch.inf
        if self._sampling.temperature:
            logits_BV = logits_BV / self._sampling.temperature + self._gumbel_noise(logits_BV.shape[1])
        return logits_BV.argmax(dim=1)

    def add(self, chosen_B: Tensor) -> None:
        """Take the next token of each open text."""
        for number, token in zip(self.open, chosen_B.tolist(), strict=True):
            self._texts[number].append(token)
            self.added[number].append(token)

    def _gumbel_noise(self, vocabulary: int) -> Tensor:
        """(B, V)"""
        keys = [hashlib.blake2b(struct.pack("<3q", self._sampling.seed, number, len(self.added[number])), digest_size=8).digest()
                for number in self.open]
        words_BV = random_words(torch.tensor([int.from_bytes(key, "little", signed=True) for key in keys]), vocabulary)
        uniform_BV = ((words_BV >> 11).bitwise_and_((1 << 53) - 1) + 0.5) * 2.0 ** -53
        return -torch.log(-torch.log(uniform_BV))


def decode(texts: Texts, *, forward: Callable[[Tensor], Tensor | None], share: Callable[[Tensor | None], Tensor]) -> list[list[int]]:
    """Go on until all texts have ended.

    Args:
        texts: On every rank the same.
        forward: The decoder: window in, logits out; None where another rank has them.
        share: Gives every rank what one of them chose.
    Returns:
        ``texts.added``.
    """
    with torch.no_grad():
        while texts.open:
            logits = forward(texts.window())
            texts.add(share(None if logits is None else texts.choose(logits)))
    return texts.added


def decode_locally(texts: Texts, decoder: Callable[[Tensor], Tensor]) -> list[list[int]]:
    """Go on in one process that holds the whole decoder, in evaluation mode."""

    def own(chosen: Tensor | None) -> Tensor:
        assert chosen is not None
        return chosen

    return decode(texts, forward=decoder, share=own)
