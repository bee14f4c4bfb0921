"""When ``sparkring retrain`` trains a new model, what it starts from, and when that model becomes the champion."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sparkring.conf.schema.base.section import Positive, Section


class TriggerConfig(Section):
    """When a new model is trained: as soon as one of these holds. The first model is always trained, and none twice on one dataset
    version.
    """

    new_rows: Positive | None = 1
    """The dataset has at least so many rows more than at the last retraining; null: rows alone are no reason."""
    max_age_days: Annotated[float, Field(gt=0)] | None = None
    """The champion is older than this and at least one row is new."""
    max_psi: Annotated[float, Field(gt=0)] | None = None
    """A feature's population stability index of the new rows, against the champion's train rows, is above this. 0.1 is a small shift,
    0.25 a large one."""
    always: bool = False
    """With every new dataset version."""

    @model_validator(mode="after")
    def _some_trigger(self) -> Self:
        if not self.always and self.new_rows is None and self.max_age_days is None and self.max_psi is None:
            raise ValueError("retrain.trigger: no trigger is left, so no second model would ever be trained; set new_rows, max_age_days, "
                             "max_psi or always")
        return self


class PromoteConfig(Section):
    """When the candidate becomes the champion. Both are measured on the same held-out rows, and compared row by row."""

    when: Literal["better", "not_worse", "always", "never"] = "not_worse"
    """better: the candidate's mean loss is lower, and that is no chance. not_worse: it is not higher by more than ``margin``, at this
    confidence. always: without a look. never: a person promotes (``sparkring models promote``)."""
    margin: Annotated[float, Field(ge=0)] = 0.01
    """For not_worse: the largest loss of quality that is accepted, as a share of the champion's mean loss."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """Confidence of the interval that decides."""


class RetrainConfig(Section):
    """Training again on a schedule."""

    prepare: bool = True
    """Whether new rows are taken from the sources first. False: something else adds dataset versions, such as ``sparkring ingest``."""
    trigger: TriggerConfig = TriggerConfig()
    start: Literal["champion", "afresh"] = "champion"
    """The candidate's first weights: the champion's, or new random ones."""
    promote: PromoteConfig = PromoteConfig()
