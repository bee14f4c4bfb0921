"""Intervals of 95% around figures that were measured on a sample of rows. Pure."""

from __future__ import annotations

import math

Z = 1.959963984540054
"""The 97.5% quantile of the normal distribution."""


def auc_interval(auc: float, *, positives: int, negatives: int) -> tuple[float, float]:
    """The interval of an area under the ROC curve.

    Source: Hanley and McNeil, "The meaning and use of the area under a receiver operating characteristic (ROC) curve", Radiology 143,
    1982, equation 1.
    """
    q1, q2 = auc / (2 - auc), 2 * auc * auc / (1 + auc)
    variance = auc * (1 - auc) + (positives - 1) * (q1 - auc * auc) + (negatives - 1) * (q2 - auc * auc)
    reach = Z * math.sqrt(max(variance, 0.0) / (positives * negatives))
    return max(auc - reach, 0.0), min(auc + reach, 1.0)


def share_interval(share: float, *, count: int) -> tuple[float, float]:
    """The interval of a share of independent rows.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22, 1927.
    """
    centre, scale = share + Z * Z / (2 * count), 1 + Z * Z / count
    reach = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    return (centre - reach) / scale, (centre + reach) / scale
