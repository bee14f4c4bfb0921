"""From a model's blocks to one shard's blocks.

A part is built whole, with the weights that it has in any layout, and is then cut by the rule of its type. Parts without a rule
are held whole by every shard. Parameters keep their names, so a state in whole tensors fits every layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from sparkring.errors import LayoutRefused
from sparkring.models.blocks import BlockList, Factory
from sparkring.models.text import DecoderBlock, TokenEmbedding, TokenLogits
from sparkring.pipelines.parallel.collectives.sets import SetReducer
from sparkring.pipelines.parallel.tensor_parallel.linear import ColumnLinear, RowLinear
from sparkring.pipelines.parallel.tensor_parallel.shard_spec import ShardSpec, split_evenly
from sparkring.pipelines.parallel.tensor_parallel.vocabulary import VocabularyEmbedding, vocabulary_split

Rule = Callable[[nn.Module, SetReducer, str], nn.Module]
"""``rule(part, reducer, name)`` returns this shard's slice of the part; it may change the part and return it."""


@dataclass(frozen=True)
class AbsentShards:
    """Stands in for the reducer of ``size`` shards if no ring runs: it shows what the first shard would hold."""

    size: int
    index: int = 0

    def sum_(self, tensor: Tensor, name: str) -> None:
        """Leave the tensor as it is."""


def _decoder_block(part: nn.Module, reducer: SetReducer, name: str) -> nn.Module:
    """Cut attention by heads and the perceptron by hidden units; norms stay whole."""
    assert isinstance(part, DecoderBlock)
    attention, size = part.attention, reducer.size
    heads, head_width = attention.heads, attention.project.in_features // attention.heads
    by_head = partial(split_evenly, size, size=heads, what="heads", unit=head_width)
    units = partial(split_evenly, size, size=part.grow.out_features, what="hidden units")
    rows = by_head(dim=0, groups=3)
    attention.heads = rows.size(reducer.index) // (3 * head_width)
    _replace(attention, "query_key_value", ColumnLinear(
        attention.query_key_value, reducer, name=f"{name}.attention.query_key_value", outputs=rows))
    _replace(attention, "project", RowLinear(attention.project, reducer, name=f"{name}.attention.project", inputs=by_head(dim=1)))
    _replace(part, "grow", ColumnLinear(part.grow, reducer, name=f"{name}.grow", outputs=units(dim=0)))
    _replace(part, "shrink", RowLinear(part.shrink, reducer, name=f"{name}.shrink", inputs=units(dim=1)))
    return part


def _token_embedding(part: nn.Module, reducer: SetReducer, name: str) -> nn.Module:
    assert isinstance(part, TokenEmbedding)
    return VocabularyEmbedding(part, reducer, name=name)


def _token_logits(part: nn.Module, reducer: SetReducer, name: str) -> nn.Module:
    assert isinstance(part, TokenLogits)
    return ColumnLinear(part, reducer, name=name, outputs=vocabulary_split(part.out_features, reducer.size))


RULES: Mapping[type[nn.Module], Rule] = {DecoderBlock: _decoder_block, TokenEmbedding: _token_embedding, TokenLogits: _token_logits}


def shard_blocks(blocks: BlockList, reducer: SetReducer, *, rules: Mapping[type[nn.Module], Rule] = RULES) -> BlockList:
    """The same blocks, whose parts are built as this shard's slices.

    Args:
        blocks: The blocks of the whole model.
        reducer: Sums over the ranks that together compute one copy of the stage.
        rules: The rule for each type of part; every shard holds parts of other types whole.
    Raises:
        LayoutRefused: no part has a rule, or a part has too few units for so many shards.
    """
    if reducer.size == 1:
        return blocks
    with torch.device("meta"), torch.random.fork_rng(devices=()):  # their types and sizes, without memory
        sketched = {name: factory() for block in blocks for name, factory in block.parts.items()}
        if not any(type(part) in rules for part in sketched.values()):
            found, known = (", ".join(sorted(names)) for names in ({type(part).__name__ for part in sketched.values()},
                                                                   {kind.__name__ for kind in rules}))
            raise LayoutRefused(f"shards={reducer.size}: no part of this model can be cut into shards: it consists of {found}, there are "
                                f"rules for {known}; set shards to 1 and use more stages or replicas.")
        for name, part in sketched.items():
            _cut(part, reducer, name, rules)  # refuses here, before memory is taken
    return replace(blocks, blocks=tuple(
        replace(block, parts={name: partial(_build, factory, reducer, name, rules) for name, factory in block.parts.items()})
        for block in blocks))


def _build(factory: Factory, reducer: SetReducer, name: str, rules: Mapping[type[nn.Module], Rule]) -> nn.Module:
    return _cut(factory(), reducer, name, rules)


def _cut(part: nn.Module, reducer: SetReducer, name: str, rules: Mapping[type[nn.Module], Rule]) -> nn.Module:
    rule = rules.get(type(part))
    return part if rule is None else rule(part, reducer, name)


def shard_specs(model: nn.Module) -> dict[str, ShardSpec]:
    """The cuts of a model's sharded parameters, by name; every shard holds the others whole."""
    return {f"{path}.{name}" if path else name: split
            for path, module in model.named_modules()
            for name, split in getattr(module, "splits", {}).items()}


def whole_tensor(part: Tensor, split: ShardSpec, reducer: SetReducer, name: str) -> Tensor:
    """Join every shard's slice into the whole tensor, bit by bit; all shards call this together."""
    bits = part.detach().contiguous().view(_BITS[part.dtype.itemsize])
    whole = bits.new_zeros(split.whole_shape(part.shape))
    split.put(whole, reducer.index, bits)
    reducer.sum_(whole, f"whole.{name}")
    return whole.view(part.dtype)


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of equal size: added to zeros they keep every bit, unlike floats (-0.0 + 0.0 is 0.0)."""


def _replace(owner: nn.Module, name: str, module: nn.Module) -> None:
    owner.add_module(name, module)
