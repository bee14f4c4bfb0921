"""The network for tables: an embedding for each category column beside the numbers, then a multilayer perceptron.

    categorical (B, C) -> C embeddings -+
                                        +-> concat -> [linear -> ReLU -> dropout] x len(hidden) -> linear -> logits (B, K)
    numeric     (B, F) -----------------+

Shapes: B rows, F numeric features, C category columns, K logits a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from sparkring.models.blocks import LOGITS, Block, BlockList, Factory, X, in_turn
from sparkring.models.dropout import RowDropout
from sparkring.models.inputs import CATEGORICAL, NUMERIC, ROW_SEEDS


def tabular_blocks(num_numeric: int, cardinalities: Sequence[int], *, hidden: Sequence[int], max_embedding: int,
                   num_outputs: int = 1, dropout: float = 0.0) -> BlockList:
    """List the network's blocks: the embeddings, each hidden layer, and the last layer, which makes logits.

    Args:
        num_numeric: F, columns of ``numeric``.
        cardinalities: Number of ids of each category column, including id 0 (unknown).
        hidden: Widths of the hidden layers.
        max_embedding: Largest embedding width.
        num_outputs: K; with 1 the logits are returned as (B,).
        dropout: Share of each hidden layer's outputs that is dropped; above 0 the network takes ``row_seeds`` (B,), too.
    """
    columns = [(size, embedding_width(size, limit=max_embedding)) for size in cardinalities]
    embeddings: dict[str, Factory] = {
        f"embeddings.{column}": partial(nn.Embedding, size, width) for column, (size, width) in enumerate(columns)}
    widths = [num_numeric + sum(width for _, width in columns), *hidden, num_outputs]
    layers = [(f"layers.{2 * place}", partial(nn.Linear, *pair)) for place, pair in enumerate(pairwise(widths))]  # odd ones: ReLU
    seeds = (ROW_SEEDS,) if dropout else ()

    def hidden_parts(name: str, make: Factory) -> dict[str, Factory]:
        drop: dict[str, Factory] = {name.replace("layers", "dropouts"): partial(RowDropout, dropout, place=name)} if dropout else {}
        return {name: make, **drop}

    return BlockList((
        Block("embeddings", embeddings, run=_embed, reads=(NUMERIC, CATEGORICAL)),
        *(Block(name, hidden_parts(name, make), run=_hidden, reads=(X, *seeds)) for name, make in layers[:-1]),
        *(Block(name, {name: make}, run=_logits, writes=(LOGITS,)) for name, make in layers[-1:])), inputs=(NUMERIC, CATEGORICAL, *seeds))


def _embed(parts: Sequence[nn.Module], numeric: Tensor, categorical: Tensor) -> Tensor:
    return torch.cat([numeric, *(embed(categorical[:, column]) for column, embed in enumerate(parts))], dim=1)


def _hidden(parts: Sequence[nn.Module], x: Tensor, *row_seeds_B: Tensor) -> Tensor:
    linear, *dropouts = parts
    return in_turn(dropouts, torch.relu(linear(x)), *row_seeds_B)


def _logits(parts: Sequence[nn.Module], x: Tensor) -> Tensor:
    logits: Tensor = parts[0](x)
    return logits.squeeze(1) if logits.shape[1] == 1 else logits


def embedding_width(cardinality: int, *, limit: int) -> int:
    """Width for a vocabulary: grows more slowly than the vocabulary, at most ``limit``.

    Source: the rule ``min(limit, round(1.6 * n ** 0.56))`` of fastai's tabular models.
    """
    return max(1, min(limit, round(1.6 * math.pow(cardinality, 0.56))))
