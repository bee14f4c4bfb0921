"""Slices and importance of ``evaluation.json``, in words and ready to draw. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sparkring.pipelines.data.stores.documents import StrictModel
from sparkring.spark_jobs.explaining.documents import Group, Importance, LeftOut, Measure, Slices
from sparkring.spark_jobs.reporting.facts.words import DASH, count, measure, metric, several, share

Kind = TypeVar("Kind", bound=StrictModel)
_TITLES: dict[Measure, str] = {"auc": "ROC AUC", "error_rate": "error rate", "mae": "MAE"}


@dataclass(frozen=True, kw_only=True)
class Explained:
    """What the report says about groups of rows and about features."""

    slices: Slices | None
    importance: Importance | None
    left_out: str | None
    """Why there are none, in one sentence."""

    @property
    def measure_title(self) -> str:
        """The figure beside the loss."""
        return _TITLES[self.slices.measure_name] if self.slices else ""

    @property
    def looked_at(self) -> str:
        """The rows of the groups in words."""
        if self.slices is None:
            return ""
        if self.slices.rows == self.slices.split_rows:
            return f"all {count(self.slices.rows)} rows"
        return f"{count(self.slices.rows)} of {count(self.slices.split_rows)} rows, drawn at random"

    @property
    def worst_title(self) -> str:
        """Of the table of the worst groups."""
        assert self.slices is not None
        named = len(self.slices.worst)
        return several(named, "group") if named == self.slices.worse else f"The worst {named} of {count(self.slices.worse)} groups"

    def loss(self, value: float) -> str:
        """A mean loss; that of a regression may have any size."""
        return measure(value) if self.slices and self.slices.measure_name == "mae" else metric(value)

    def figure(self, value: float | None) -> str:
        """A value of the measure."""
        if value is None or self.slices is None:
            return DASH
        return {"auc": metric, "error_rate": share, "mae": measure}[self.slices.measure_name](value)

    def excess(self, group: Group) -> str:
        """A group's loss against the rest's."""
        return f"{group.loss / group.rest - 1:+.0%}" if group.rest > 0 else DASH


def explained_facts(document: Mapping[str, Any]) -> Explained | None:
    """Read the parsed ``evaluation.json``; None if it is of a release that did not compute these.

    Raises:
        ValueError: they are damaged.
    """
    if "slices" not in document or "importance" not in document:
        return None
    left_out = document["slices"].get("left_out")
    if left_out is not None:
        return Explained(slices=None, importance=None, left_out=LeftOut.model_validate(document["slices"]).left_out)
    return Explained(slices=Slices.model_validate(document["slices"]), importance=Importance.model_validate(document["importance"]),
                     left_out=None)
