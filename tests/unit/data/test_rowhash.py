"""The digest of a set of rows: order-free, additive, and different when a row is lost, repeated or exchanged."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sparkring.pipelines.data.order.rowhash import add, from_hex, rows_digest, to_hex

INT64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)
IDS = np.arange(10_007, dtype=np.int64)


def _ids(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def test_the_mixer_is_splitmix64() -> None:
    # The generator's first outputs from seed 1234567: its state grows by the increment before each is mixed.
    increment = 0x9E3779B97F4A7C15
    seeds = [1234567, 1234567 + increment - 2**64]
    assert [rows_digest(_ids([seed])) for seed in seeds] == [6457827717110365317, 3203168211198807973]


def test_no_rows_have_digest_zero_and_row_zero_has_not() -> None:
    assert rows_digest(_ids([])) == 0
    assert rows_digest(_ids([0])) != 0


@given(st.lists(INT64), st.randoms())
def test_order_does_not_matter(values: list[int], chance: random.Random) -> None:
    shuffled = list(values)
    chance.shuffle(shuffled)
    assert rows_digest(_ids(shuffled)) == rows_digest(_ids(values))


@given(st.lists(INT64), st.lists(INT64))
def test_digests_of_parts_add_up_to_that_of_the_whole(left: list[int], right: list[int]) -> None:
    assert add([rows_digest(_ids(left)), rows_digest(_ids(right))]) == rows_digest(_ids(left + right))


@pytest.mark.parametrize("changed", [
    pytest.param(IDS[:-1], id="a row is lost"),
    pytest.param(np.append(IDS, IDS[5]), id="a row is read twice"),
    pytest.param(np.append(IDS[:-1], IDS[5]), id="a row is read instead of another"),
    pytest.param(np.append(np.delete(IDS, [3, 4]), [2, 5]), id="two rows are exchanged for others of the same sum"),
])
def test_a_wrong_epoch_has_another_digest(changed: NDArray[np.int64]) -> None:
    assert rows_digest(changed) != rows_digest(IDS)


@given(st.integers(min_value=0, max_value=2**64 - 1))
def test_hex_has_sixteen_digits_and_comes_back(digest: int) -> None:
    text = to_hex(digest)
    assert len(text) == 16
    assert from_hex(text) == digest
