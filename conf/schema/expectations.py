"""What the rows of a version must be like: ``prepare.expectations``."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from sparkring.conf.schema.section import Positive, Section


class ColumnExpectations(Section):
    """What a column of the rows to be written must be like; what is not said is not asked."""

    max_null_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of rows that may be null."""
    min: float | None = None
    """Least value; nulls aside."""
    max: float | None = None
    """Greatest value; nulls aside."""
    unique: bool = False
    """No value twice; nulls aside."""
    allowed: tuple[str | int | float, ...] = ()
    """All values that may be there; nulls aside."""
    max_mean_shift: Annotated[float, Field(gt=0)] | None = None
    """For a numeric feature: how far the mean of train rows may be from the parent version's, in that one's standard deviations."""
    max_psi: Annotated[float, Field(gt=0)] | None = None
    """For a feature: population stability index of train rows against the parent version's; 0.1 is a small shift, 0.25 a large one."""

    @model_validator(mode="after")
    def _range_is_one(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min={self.min} is above max={self.max}")
        return self


class ExpectationsConfig(Section):
    """What the rows of a version must be like, checked before any of them is written; a breach stops the commit."""

    min_rows: Positive | None = None
    """Rows of all splits together, at least."""
    max_rows: Positive | None = None
    """Rows of all splits together, at most."""
    columns: dict[str, ColumnExpectations] = {}
    """By column of the query's result."""
