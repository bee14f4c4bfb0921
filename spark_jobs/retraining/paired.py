"""Two models on the same rows: the mean of their losses' differences, with its confidence interval. Pure.

Both models see the same rows, so what makes a row hard is in both losses and cancels in their difference:

    d = loss of the champion - loss of the candidate, by row; above 0 the candidate is better
    mean(d) +- z * deviation(d) / sqrt(rows)

Thousands of rows make the mean normal, whatever the losses are. Rows that hang together (flights of one stormy day) make the interval too
narrow: then ask for more confidence (``retrain.promote.confidence``).
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

from sparkring.conf.schema.retrain import PromoteConfig

FEWEST_ROWS = 30
"""With fewer rows the mean is not normal enough for the interval."""


class Paired(NamedTuple):
    """Mean losses of two models on the same rows, and of their difference."""

    rows: int
    champion: float
    """Mean loss of the champion."""
    candidate: float
    """Mean loss of the candidate."""
    deviation: float
    """Standard deviation of the rows' differences."""

    @property
    def gain(self) -> float:
        """How much lower the candidate's mean loss is; negative if it is higher."""
        return self.champion - self.candidate

    def interval(self, confidence: float) -> tuple[float, float]:
        """Where the gain lies with this confidence (two-sided)."""
        spread = NormalDist().inv_cdf((1 + confidence) / 2) * self._error
        return self.gain - spread, self.gain + spread

    @property
    def p_value(self) -> float:
        """Probability of a gain at least this far from 0 (to either side) if the models were equally good."""
        if self._error == 0:
            return 1.0 if self.gain == 0 else 0.0
        return 2 * NormalDist().cdf(-abs(self.gain) / self._error)

    @property
    def _error(self) -> float:
        return self.deviation / math.sqrt(self.rows)


class Verdict(NamedTuple):
    """Whether the candidate becomes the champion, and why, in one sentence."""

    promote: bool
    reason: str


def judge(found: Paired | None, policy: PromoteConfig) -> Verdict:
    """Decide by the policy.

    Args:
        found: The comparison; None if there is no champion yet.
        policy: ``retrain.promote``.
    """
    if policy.when == "never":
        return Verdict(promote=False, reason="retrain.promote.when is never: a person promotes")
    if found is None:
        return Verdict(promote=True, reason="there was no champion")
    low, high = found.interval(policy.confidence)
    figures = (f"mean loss {found.candidate:.5f}, the champion's {found.champion:.5f}, gain {found.gain:+.5f} "
               f"[{low:+.5f}, {high:+.5f}] on {found.rows:,} held-out rows")
    if policy.when == "always":
        return Verdict(promote=True, reason=f"retrain.promote.when is always: {figures}")
    if found.rows < FEWEST_ROWS:
        return Verdict(promote=False, reason=f"fewer than {FEWEST_ROWS} held-out rows are too few to tell: {figures}")
    if policy.when == "better":
        return Verdict(promote=low > 0, reason=f"{'better' if low > 0 else 'not better beyond chance'}: {figures}")
    least = -policy.margin * abs(found.champion)
    said = "not worse" if low >= least else "it may be worse"
    return Verdict(promote=low >= least, reason=f"{said} by more than {100 * policy.margin:g}% of the champion's loss: {figures}")
