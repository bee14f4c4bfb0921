"""Continuing texts with a decoder, token by token: its window, the next token, a text's end. Knows nothing of ranks.

    prompts -> window (B, T): each open text's last tokens -> the decoder -> logits -> choose (B,) -> add -> window ...

Each token is the likeliest one, or drawn with a temperature. The randomness of a draw depends only on the seed, the
text's number and the token's position. Of a text longer than the decoder's rows, the decoder sees the end. Every pass
computes the whole window again: nothing is kept between tokens.
Source: drawing by the largest of logits with Gumbel noise: Gumbel, "Statistical theory of extreme values", 1954;
Maddison et al., "A* sampling", NeurIPS 2014, section 2.
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
    """How the next tokens of texts are chosen."""

    max_tokens: int
    """Largest number of new tokens of a text."""
    temperature: float = 0.0
    """0 takes the likeliest token; 1 draws with the predicted probabilities; values between favour likely tokens."""
    seed: int = 0
    """Seed of the draws."""


@dataclass(frozen=True, kw_only=True)
class TokenIds:
    """The length of the decoder's rows, and their special tokens."""

    length: int
    """T, tokens of a row."""
    end_id: int
    """Ends a document."""
    pad_id: int
    """Fills rows; never chosen."""
    whole_rows: bool = False
    """Whether the decoder takes rows of ``length`` only. What fills a row follows its text, so a causal decoder does not see it."""


class Texts:
    """Texts that a decoder continues."""

    def __init__(self, prompts: Sequence[Sequence[int]], ids: TokenIds, sampling: Sampling) -> None:
        """Start from prompts.

        Args:
            prompts: Tokens of each text; an empty prompt begins a new document.
            ids: The decoder's row length and special tokens.
            sampling: How next tokens are chosen.
        """
        self._texts = [list(prompt) or [ids.end_id] for prompt in prompts]
        self._ids, self._sampling = ids, sampling
        self.added: list[list[int]] = [[] for _ in prompts]
        """New tokens of each text; the last one is ``end_id`` if the decoder ended the text."""

    @property
    def open(self) -> list[int]:
        """Numbers of the texts that have not ended."""
        return [number for number, tokens in enumerate(self.added)
                if len(tokens) < self._sampling.max_tokens and tokens[-1:] != [self._ids.end_id]]

    def window(self) -> Tensor:
        """(B, T) the last tokens of the open texts, padded at the end; T is the longest's length, at most a row's, or just that."""
        seen = [self._texts[number][-self._ids.length:] for number in self.open]
        length = self._ids.length if self._ids.whole_rows else max(map(len, seen))
        window = torch.full((len(seen), length), self._ids.pad_id)
        for row, tokens in enumerate(seen):
            window[row, :len(tokens)] = torch.tensor(tokens)
        return window

    def choose(self, logits_BTV: Tensor) -> Tensor:
        """(B,) the next token of each open text, given the decoder's logits of the window."""
        last = [min(len(self._texts[number]), self._ids.length) - 1 for number in self.open]
        logits_BV = logits_BTV[torch.arange(len(last)), last].double().cpu()
        logits_BV[:, self._ids.pad_id] = -torch.inf
        if self._sampling.temperature:
            logits_BV = logits_BV / self._sampling.temperature + self._gumbel_noise(logits_BV.shape[1])
        return logits_BV.argmax(dim=1)

    def add(self, chosen_B: Tensor) -> None:
        """Append the next token to each open text."""
        for number, token in zip(self.open, chosen_B.tolist(), strict=True):
            self._texts[number].append(token)
            self.added[number].append(token)

    def _gumbel_noise(self, vocabulary: int) -> Tensor:
        """(B, V) Gumbel noise for the next token of each open text."""
        keys = [hashlib.blake2b(struct.pack("<3q", self._sampling.seed, number, len(self.added[number])), digest_size=8).digest()
                for number in self.open]
        words_BV = random_words(torch.tensor([int.from_bytes(key, "little", signed=True) for key in keys]), vocabulary)
        uniform_BV = ((words_BV >> 11).bitwise_and_((1 << 53) - 1) + 0.5) * 2.0 ** -53
        return -torch.log(-torch.log(uniform_BV))


def decode(texts: Texts, *, forward: Callable[[Tensor], Tensor | None], share: Callable[[Tensor | None], Tensor]) -> list[list[int]]:
    """Continue texts until all of them have ended.

    Args:
        texts: The same on every rank.
        forward: The decoder: takes the window, returns its logits, or None if another rank has them.
        share: Gives every rank the tokens that one of them chose; None on ranks that chose none.
    Returns:
        ``texts.added``.
    """
    with torch.no_grad():
        while texts.open:
            logits = forward(texts.window())
            texts.add(share(None if logits is None else texts.choose(logits)))
    return texts.added


def decode_locally(texts: Texts, decoder: Callable[[Tensor], Tensor]) -> list[list[int]]:
    """Continue texts in one process that holds the whole decoder, in evaluation mode."""

    def own(chosen: Tensor | None) -> Tensor:
        assert chosen is not None
        return chosen

    return decode(texts, forward=decoder, share=own)
