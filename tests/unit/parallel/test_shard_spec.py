"""Dealing a parameter to shards: as drawn, evenly, and back to the same whole tensor."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparkring.errors import LayoutRefused
from sparkring.pipelines.parallel.tensor_parallel.shard_spec import split_evenly


def test_heads_are_dealt_alike_in_query_key_and_value() -> None:
    #    whole     qa qb qc qd | ka kb kc kd | va vb vc vd
    split = split_evenly(3, dim=0, size=4, what="heads", groups=3)
    assert split.ranges == (((0, 2), (4, 6), (8, 10)), ((2, 3), (6, 7), (10, 11)), ((3, 4), (7, 8), (11, 12)))
    whole = torch.tensor([ord(letter) for letter in "abcdABCD0123"])
    assert ["".join(map(chr, split.take(whole, shard).tolist())) for shard in range(3)] == ["abAB01", "cC2", "dD3"]


@given(st.data())
def test_what_is_cut_and_joined_is_the_same(data: st.DataObject) -> None:
    num_shards, unit, groups, dim = (data.draw(st.integers(*bounds)) for bounds in ((1, 5), (1, 3), (1, 3), (0, 1)))
    size = data.draw(st.integers(num_shards, 12))
    split = split_evenly(num_shards, dim=dim, size=size, what="units", unit=unit, groups=groups)
    assert split.whole_size == size * unit * groups
    shape = [2, 2]
    shape[dim] = split.whole_size
    whole = torch.arange(2 * split.whole_size).view(shape)
    parts = [split.take(whole, shard) for shard in range(num_shards)]
    assert torch.equal(split.join(parts), whole)
    assert [part.shape[dim] for part in parts] == [split.size(shard) for shard in range(num_shards)]
    assert max(map(split.size, range(num_shards))) - min(map(split.size, range(num_shards))) <= unit * groups
    assert {split.whole_shape(part.shape) for part in parts} == {tuple(shape)}
    parts[0].fill_(-1)
    assert (whole >= 0).all()  # a slice has memory of its own


def test_too_few_to_deal_are_refused_by_name() -> None:
    with pytest.raises(LayoutRefused, match="2 heads cannot be dealt to 3 shards; set shards to at most 2, or give the model more heads"):
        split_evenly(3, dim=0, size=2, what="heads")
