"""Masked tokens: which of a row's tokens a network has to find, by (seed, epoch, row id, position) alone. Does not read rows.

    tokens     d e f _ s c o r e P P      P is padding, which is never masked
    chosen     . . x . . x . . x . .      15 % of the tokens
    inputs     d e M _ s c o r q P P      of these 80 % become the mask id, 10 % any token, 10 % stay
    targets    P P f P P c P P e P P

So a row's masks are the same on any number of ranks, in any layout, and in a run that resumes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparkring.pipelines.data.dataset.row_schema import MaskSpec
from sparkring.pipelines.data.order.rowhash import mix, row_bits

Tokens = NDArray[np.int64]
SHARE, HIDDEN, REPLACED = 0.15, 0.8, 0.1
"""Share of the tokens that are chosen; shares of these that become the mask id, or any token."""
_GAMMA, _HALF = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)


def masked(tokens: Tokens, row_ids: NDArray[np.int64], how: MaskSpec, *, seed: int, epoch: int) -> Tokens:
    """The inputs or, if ``how`` asks for them, the targets of rows.

    Args:
        tokens: (rows, length), all ids below ``how.pad_id`` or equal to it.
        row_ids: (rows,)
        how: The special ids, and what is asked for.
        seed: The run's seed.
        epoch: The epoch; each has its own masks.
    Returns:
        (rows, length)
    Source: Devlin et al., "BERT: pre-training of deep bidirectional transformers for language understanding", NAACL 2019, section 3.1.
        There a row has exactly 15 % of its tokens chosen; here each token is chosen by itself.
    """
    steps = np.arange(1, tokens.shape[1] + 1, dtype=np.uint64) * _GAMMA
    words = mix(np.add(row_bits(row_ids, seed=seed, epoch=epoch)[:, None], steps))
    chosen = (_unit(words >> _HALF) < SHARE) & (tokens != how.pad_id)
    if how.targets:
        return np.where(chosen, tokens, how.pad_id)
    fate = _unit(words & np.uint64(2**32 - 1))
    any_token = (mix(words) % np.uint64(how.pad_id)).astype(np.int64)
    replaced = np.where(fate < HIDDEN, how.mask_id, np.where(fate < HIDDEN + REPLACED, any_token, tokens))
    return np.where(chosen, replaced, tokens)


def _unit(halves: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Numbers of 32 bits as shares of 1."""
    return halves / 2.0**32
