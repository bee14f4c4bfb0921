"""Masked tokens: their shares, and what they depend on."""

from __future__ import annotations

import numpy as np
import pytest

from sparkring.pipelines.data.dataset.row_schema import MaskSpec
from sparkring.pipelines.data.loading.masking import Tokens, masked

PAD, MASK = 100, 101
SEEN, FOUND = (MaskSpec(mask_id=MASK, pad_id=PAD, targets=targets) for targets in (False, True))
IDS = np.arange(4000, dtype=np.int64) * 7
GENERATOR = np.random.default_rng(1)
TOKENS: Tokens = GENERATOR.integers(0, PAD, (4000, 50))
TOKENS[::10, 40:] = PAD


def _seen(*, seed: int = 3, epoch: int = 0) -> Tokens:
    return masked(TOKENS, IDS, SEEN, seed=seed, epoch=epoch)


def _found(*, seed: int = 3, epoch: int = 0) -> Tokens:
    return masked(TOKENS, IDS, FOUND, seed=seed, epoch=epoch)


def test_fifteen_in_a_hundred_tokens_are_to_be_found_and_no_padding() -> None:
    chosen = _found() != PAD
    assert chosen.sum() / (TOKENS != PAD).sum() == pytest.approx(0.15, abs=0.004)  # 196,000 tokens: five deviations
    assert not chosen[TOKENS == PAD].any()
    np.testing.assert_array_equal(_found()[chosen], TOKENS[chosen])
    np.testing.assert_allclose(chosen[:, :40].mean(axis=0), 0.15, atol=0.03)  # of each position alike


def test_of_these_eight_in_ten_are_hidden_one_is_any_token_and_one_stays() -> None:
    chosen, seen = _found() != PAD, _seen()
    np.testing.assert_array_equal(seen[~chosen], TOKENS[~chosen])
    after, before = seen[chosen], TOKENS[chosen]
    replaced = (after != MASK) & (after != before)
    assert [share.mean() for share in (after == MASK, replaced, after == before)] == pytest.approx([0.8, 0.099, 0.101], abs=0.012)
    assert after[replaced].min() == 0
    assert after[replaced].max() == PAD - 1


def test_a_row_s_masks_do_not_depend_on_the_rows_beside_it() -> None:
    order = GENERATOR.permutation(len(IDS))[:17]
    for how, whole in ((SEEN, _seen()), (FOUND, _found())):
        np.testing.assert_array_equal(masked(TOKENS[order], IDS[order], how, seed=3, epoch=0), whole[order])


def test_control_they_depend_on_epoch_seed_and_row_id() -> None:
    chosen = _found() != PAD
    others = [_found(epoch=1), _found(seed=4), masked(TOKENS, IDS + 1, FOUND, seed=3, epoch=0)]
    for other in others:
        assert ((other != PAD) & chosen).sum() / chosen.sum() == pytest.approx(0.15, abs=0.02)


def test_no_rows_give_no_rows() -> None:
    assert masked(TOKENS[:0], IDS[:0], SEEN, seed=0, epoch=0).shape == (0, 50)
