"""The gradient of a weighted mean, exact on any number of ranks. Pure.

A rank differentiates its share before it knows the weights of the other ranks' rows. The sum of all weights travels with the
gradients, and corrects them afterwards:

    share of a rank     sum of w l over its rows / N                        N rows in the step
    after the sum       the gradients times N / W: those of  sum of w l / W       W = sum of w over all ranks

With all weights equal to 1, W is N and the factor exactly 1.
"""

from __future__ import annotations


def to_weighted_mean(rows: int, weight: float) -> float:
    """The factor that makes a weighted mean of the sum of the ranks' shares.

    Args:
        rows: Rows of the step over all ranks.
        weight: Sum of their weights.
    Returns:
        ``rows / weight``; 0 if no row counts: the gradient is then 0.
    """
    return rows / weight if weight else 0.0
