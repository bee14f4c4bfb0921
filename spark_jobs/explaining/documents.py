"""What ``evaluation.json`` holds under ``slices`` and ``importance``. All figures are of held-out rows."""

from __future__ import annotations

from typing import Literal

from sparkring.pipelines.data.stores.documents import StrictModel

Measure = Literal["auc", "error_rate", "mae"]
"""The figure beside the loss, by task: the area under the ROC curve, the share of rows with the wrong class, the mean absolute error."""


class LeftOut(StrictModel):
    """Stands in the place of figures that were not computed."""

    left_out: str
    """The reason, in one sentence."""


class Group(StrictModel):
    """The rows that have one value of a feature, or a range of values."""

    feature: str
    """A column of the dataset."""
    value: str
    """The value or range, in the source's units."""
    rows: int
    loss: float
    """Mean loss of these rows: nats; for a regression the squared error in the label's unit."""
    rest: float
    """Mean loss of all other rows."""
    p_value: float
    """Probability of a difference at least this large if these rows were no harder than the rest; corrected for the number of groups."""
    measure: float | None
    """``Slices.measure_name`` of these rows; None if their labels do not define it."""


class Slices(StrictModel):
    """The groups of rows by each feature, and those on which the model is worse than on the rest."""

    rows: int
    """Rows that were looked at."""
    split_rows: int
    """Rows of the split."""
    loss: float
    """Mean loss of all rows that were looked at."""
    measure_name: Measure
    measure: float | None
    """That figure of all of them."""
    least_rows: int
    """Rows that a group has at least."""
    tested: int
    """Groups that were compared with the rest."""
    worse: int
    """Those of them whose loss is higher than the rest's beyond chance."""
    worst: tuple[Group, ...]
    """Of these the worst: the one whose loss lies highest above the rest's first."""
    groups: tuple[Group, ...]
    """All by feature; of a feature with very many values the largest."""


class Rise(StrictModel):
    """How much a feature's values are worth to the model."""

    feature: str
    """A column of the source's rows, or a part of a moment."""
    rise: float
    """Rise of the mean loss when the feature's values are permuted among the rows."""
    low: float
    high: float
    """Its 95 % confidence interval."""


class Importance(StrictModel):
    """Permutation importance."""

    rows: int
    """Rows whose values were permuted."""
    loss: float
    """Their mean loss with their own values."""
    features: tuple[Rise, ...]
    """The most important first."""
