"""The network for token sequences: a causal transformer decoder that predicts each next token.

    tokens (B, T) -> embedding + position -> [x + attention(norm(x)); x + mlp(norm(x))] x layers -> norm -> logits (B, T, V)

Position t sees the tokens 0..t only. The output matrix may be the embedding's (tied), which saves V x D parameters.
Shapes: B rows, T tokens, D width, H heads, V vocabulary.
Source: Radford et al., "Language models are unsupervised multitask learners", 2019 (pre-norm blocks, residual weights scaled
down with depth); Press and Wolf, "Using the output embedding to improve language models", EACL 2017 (tying).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

INITIAL_STD = 0.02


class TextNetwork(nn.Module):
    """Predicts the logits of the token after each position."""

    def __init__(self, vocabulary: int, length: int, *, width: int, layers: int, heads: int, tied: bool) -> None:
        """Build the layers.

        Args:
            vocabulary: V, token ids.
            length: T, tokens of a row at most.
            width: D; a multiple of ``heads``.
            layers: Blocks.
            heads: H.
            tied: Whether the output matrix is the embedding's.
        """
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Embedding(length, width)
        blocks = [Block(width, heads) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.head = None if tied else nn.Linear(width, vocabulary, bias=False)
        self.apply(_initialise)
        for block in blocks:
            for last in (block.attention.project, block.shrink):  # what is added to the residual stream, 2 a layer
                nn.init.normal_(last.weight, std=INITIAL_STD / math.sqrt(2 * layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (B, T, V) for ``tokens`` (B, T) int64."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x_BTD = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        weight = self.token_embedding.weight if self.head is None else self.head.weight
        return functional.linear(self.norm(x_BTD), weight)


class Block(nn.Module):
    """Attention, then a multilayer perceptron, each normalised before and added after."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), CausalAttention(width, heads)
        self.norm2, self.grow, self.shrink = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return a tensor of the input's shape."""
        x_BTD = x_BTD + self.attention(self.norm1(x_BTD))
        mixed: Tensor = x_BTD + self.shrink(functional.gelu(self.grow(self.norm2(x_BTD)), approximate="tanh"))
        return mixed


class CausalAttention(nn.Module):
    """Scaled dot-product attention in which no position sees a later one."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return a tensor of the input's shape."""
        # (B, T, 3D) -> (B, T, 3, H, D/H) -> three times (B, H, T, D/H)
        parts = self.query_key_value(x_BTD).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed_BHTd = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        projected: Tensor = self.project(mixed_BHTd.transpose(1, 2).flatten(2))
        return projected


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
