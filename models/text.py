"""The network for token sequences: a transformer that predicts each next token, or the masked ones.

    tokens (B, T) -> embedding + position -> [x + attention(norm(x)); x + mlp(norm(x))] x layers -> norm -> logits (B, T, V)

Where next tokens are predicted, position t sees the tokens 0..t only (causal); where masked ones are, it sees all.
The output matrix may be the embedding's (tied), which saves V x D parameters.
Dropout acts on the embedding, and on the results of attention and perceptron.
Shapes: B rows, T tokens, D width, H heads, V vocabulary.
Source: Radford et al., "Language models are unsupervised multitask learners", 2019 (pre-norm blocks, residual weights
scaled down with depth); Press and Wolf, "Using the output embedding to improve language models", EACL 2017 (tying).
Masked tokens: Devlin et al., "BERT", NAACL 2019, which normalises after each addition and not before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparkring.models.blocks import LOGITS, Block, BlockList, Factory, X, in_turn
from sparkring.models.dropout import RowDropout
from sparkring.models.inputs import ROW_SEEDS, TOKENS

INITIAL_STD = 0.02


def text_blocks(vocabulary: int, length: int, *, width: int, layers: int, heads: int, tied: bool, dropout: float = 0.0,
                causal: bool = True) -> BlockList:
    """List the network's blocks: the embeddings, each decoder block, and the head, which makes logits.

    Args:
        vocabulary: V, the number of token ids.
        length: T, the largest number of tokens in a row.
        width: D; a multiple of ``heads``.
        layers: Number of decoder blocks.
        heads: H.
        tied: Whether the output matrix is the embedding's.
        dropout: Share of elements dropped; above 0 the network takes ``row_seeds`` (B,) beside the tokens.
        causal: Whether no position sees a later one.
    """
    embedding = partial(_initialised, partial(TokenEmbedding, vocabulary, width))
    position = partial(_initialised, partial(nn.Embedding, length, width))
    seeds = (ROW_SEEDS,) if dropout else ()
    dropped: dict[str, Factory] = {"dropout": partial(RowDropout, dropout, place="embedding")} if dropout else {}
    norm = partial(nn.LayerNorm, width)
    if tied:
        head = Block("head", {"norm": norm, "token_embedding": embedding}, run=_tied_logits, writes=(LOGITS,))
    else:
        output = partial(_initialised, partial(TokenLogits, width, vocabulary, bias=False))
        head = Block("head", {"norm": norm, "head": output}, writes=(LOGITS,))

    def decoder(name: str) -> Factory:
        return partial(_initialised, partial(DecoderBlock, width, heads, dropout=dropout, name=name, causal=causal),
                       added_std=INITIAL_STD / math.sqrt(2 * layers))

    names = [f"blocks.{number}" for number in range(layers)]
    return BlockList((
        Block("embedding", {"token_embedding": embedding, "position_embedding": position, **dropped}, run=_embed, reads=(TOKENS, *seeds)),
        *(Block(name, {name: decoder(name)}, reads=(X, *seeds)) for name in names),
        head), inputs=(TOKENS, *seeds))


class TokenEmbedding(nn.Embedding):
    """Token embeddings, which also make the logits of a tied model."""

    def logits(self, x_BTD: Tensor) -> Tensor:
        """Return (B, T, V), the product of each position with each token's embedding."""
        return functional.linear(x_BTD, self.weight)


class TokenLogits(nn.Linear):
    """The output layer of a model that is not tied."""


class DecoderBlock(nn.Module):
    """Attention, then a multilayer perceptron; each takes normalised input, and its result is added to the input."""

    def __init__(self, width: int, heads: int, *, dropout: float = 0.0, name: str = "", causal: bool = True) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, causal=causal)
        self.norm2, self.grow, self.shrink = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout1, self.dropout2 = (RowDropout(dropout, place=f"{name}.{part}") for part in ("attention", "perceptron"))

    def forward(self, x_BTD: Tensor, *row_seeds_B: Tensor) -> Tensor:
        """Return a tensor of the input's shape; with dropout it takes the rows' seeds, too."""
        x_BTD = x_BTD + self.dropout1(self.attention(self.norm1(x_BTD)), *row_seeds_B)
        grown = functional.gelu(self.grow(self.norm2(x_BTD)), approximate="tanh")
        mixed: Tensor = x_BTD + self.dropout2(self.shrink(grown), *row_seeds_B)
        return mixed


class Attention(nn.Module):
    """Scaled dot-product attention; causal: no position sees a later one."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return a tensor of the input's shape."""
        # (B, T, 3D) -> (B, T, 3, H, D/H) -> three times (B, H, T, D/H)
        parts = self.query_key_value(x_BTD).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed_BHTd = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=self.causal)
        projected: Tensor = self.project(mixed_BHTd.transpose(1, 2).flatten(2))
        return projected


def _embed(parts: Sequence[nn.Module], tokens: Tensor, *row_seeds_B: Tensor) -> Tensor:
    token, position, *dropouts = parts
    x_BTD: Tensor = token(tokens) + position(torch.arange(tokens.shape[1], device=tokens.device))
    return in_turn(dropouts, x_BTD, *row_seeds_B)


def _tied_logits(parts: Sequence[nn.Module], x_BTD: Tensor) -> Tensor:
    norm, embedding = parts
    assert isinstance(embedding, TokenEmbedding)
    return embedding.logits(norm(x_BTD))


def _initialised(make: Factory, added_std: float = INITIAL_STD) -> nn.Module:
    """Build a part with normally distributed weights.

    ``added_std`` is the deviation of the two matrices whose results a decoder block adds to the residual stream.
    """
    part = make()
    for module in part.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=INITIAL_STD)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    if isinstance(part, DecoderBlock):
        for last in (part.attention.project, part.shrink):
            nn.init.normal_(last.weight, std=added_std)
    return part
