"""A vocabulary dealt to shards: the embedding, the logits, and their cross entropy without joining the logits.

Shapes: B rows, T tokens, D width, V vocabulary, v this shard's part of it, N = B * T predictions.
Source: Shoeybi et al. 2019, section 3 (parallel embedding and loss); the logarithm is combined from the shards' logarithms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from sparkring.models.losses import mean_over_tokens, next_tokens
from sparkring.models.text import TokenEmbedding
from sparkring.pipelines.parallel.collectives.sets import SetReducer
from sparkring.pipelines.parallel.tensor_parallel.functions import sum_of_shards, to_shards
from sparkring.pipelines.parallel.tensor_parallel.shard_spec import ShardSpec, split_evenly


def vocabulary_split(vocabulary: int, num_shards: int) -> ShardSpec:
    """The tokens of each shard, along dimension 0 of the embedding and of the output matrix; one range per shard."""
    return split_evenly(num_shards, dim=0, size=vocabulary, what="tokens of the vocabulary")


class VocabularyEmbedding(TokenEmbedding):
    """The embedding of this shard's tokens."""

    splits: Mapping[str, ShardSpec]

    def __init__(self, whole: TokenEmbedding, reducer: SetReducer, *, name: str) -> None:
        """Take this shard's tokens.

        Args:
            whole: The whole embedding; it is not kept.
            reducer: Sums over the shards.
            name: Its name in the whole model.
        """
        split = vocabulary_split(whole.num_embeddings, reducer.size)
        mine = split.take(whole.weight.detach(), reducer.index)
        super().__init__(len(mine), mine.shape[1], _weight=mine)
        self._reducer, self._name, self.splits = reducer, name, {"weight": split}
        ((self._first, self._last),) = split.ranges[reducer.index]

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the vectors (B, T, D) of all ``tokens`` (B, T), whichever shards hold them."""
        others = (tokens < self._first) | (tokens >= self._last)
        mine = functional.embedding((tokens - self._first).masked_fill(others, 0), self.weight)
        return sum_of_shards(mine.masked_fill(others.unsqueeze(-1), 0.0), self._reducer, self._name)

    def logits(self, x_BTD: Tensor) -> Tensor:
        """Return (B, T, v): the logits of this shard's tokens."""
        return functional.linear(to_shards(x_BTD, self._reducer, f"{self._name}.logits"), self.weight)


class _Nats(Function):
    """Cross entropy over shards. Each contributes the logarithm of its sum of exponentials, and the target's logit if it has it."""

    @staticmethod
    def forward(ctx: Any, logits_Nv: Tensor, targets_N: Tensor, first: int, reducer: SetReducer, name: str) -> Tensor:
        mine_N = (targets_N >= first) & (targets_N < first + logits_Nv.shape[1])
        own_N = (targets_N - first).masked_fill(~mine_N, 0)
        table = logits_Nv.new_zeros(reducer.size + 1, len(targets_N))  # a row per shard, then the targets' logits
        table[reducer.index] = logits_Nv.logsumexp(dim=1)
        table[-1] = logits_Nv.gather(1, own_N[:, None])[:, 0].masked_fill(~mine_N, 0.0)
        reducer.sum_(table, f"{name}.forward")
        log_total_N = table[:-1].logsumexp(dim=0)
        ctx.save_for_backward(logits_Nv, log_total_N, own_N, mine_N)
        return log_total_N - table[-1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits_Nv, log_total_N, own_N, mine_N = ctx.saved_tensors
        grad_Nv = (logits_Nv - log_total_N[:, None]).exp_()
        grad_Nv.scatter_add_(1, own_N[:, None], -mine_N[:, None].to(grad_Nv.dtype))
        return grad_Nv.mul_(grads[0][:, None]), None, None, None, None


def vocabulary_nats(logits_Nv: Tensor, targets_N: Tensor, *, split: ShardSpec, reducer: SetReducer, name: str = "loss") -> Tensor:
    """The cross entropy of each prediction, in nats, the same on all shards.

    Args:
        logits_Nv: Logits (N, v) of this shard's tokens.
        targets_N: (N,) int64, numbers in the whole vocabulary.
        split: The cut of the vocabulary.
        reducer: Sums over the shards.
        name: Name of the sum.
    Returns:
        (N,), of the logits' dtype, or float32 if that has fewer bits.
    """
    logits_Nv = logits_Nv.float() if logits_Nv.dtype.itemsize < 4 else logits_Nv
    first = split.ranges[reducer.index][0][0]
    nats: Tensor = _Nats.apply(logits_Nv, targets_N, first, reducer, name)
    return nats


def next_token_loss_sum(logits: Tensor, tokens: Tensor, *, pad_id: int, split: ShardSpec, reducer: SetReducer) -> Tensor:
    """The loss of ``models.losses.next_token_loss_sum`` from this shard's logits (B, T, v); the same on all shards."""
    return masked_token_loss_sum(logits, next_tokens(tokens, pad_id=pad_id), pad_id=pad_id, split=split, reducer=reducer)


def masked_token_loss_sum(logits: Tensor, targets: Tensor, *, pad_id: int, split: ShardSpec, reducer: SetReducer) -> Tensor:
    """The loss of ``models.losses.masked_token_loss_sum`` from this shard's logits (B, T, v); the same on all shards."""
    counted = targets != pad_id
    nats = vocabulary_nats(logits.flatten(0, 1), targets.flatten(), split=split, reducer=reducer).view_as(targets)
    return mean_over_tokens(nats.masked_fill(~counted, 0.0), counted)


def whole_logits(logits: Tensor, *, split: ShardSpec, reducer: SetReducer, name: str = "logits") -> Tensor:
    """The logits of all tokens (..., V), on all shards, from each shard's (..., v). Without gradients, for evaluation and decoding."""
    ((first, last),) = split.ranges[reducer.index]
    whole = logits.new_zeros(*logits.shape[:-1], split.whole_size)
    whole[..., first:last] = logits.detach()
    reducer.sum_(whole, name)
    return whole
