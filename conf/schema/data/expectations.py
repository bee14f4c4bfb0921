"""Checks of the rows before they are written: ``prepare.expectations``."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from sparkring.conf.schema.base.section import Positive, Section


class ColumnExpectations(Section):
    """Checks of one column of the rows to be written. Only the given ones are made."""

    max_null_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Largest share of nulls."""
    min: float | None = None
    """Smallest allowed value; nulls are ignored."""
    max: float | None = None
    """Largest allowed value; nulls are ignored."""
    unique: bool = False
    """No value may occur twice; nulls are ignored."""
    allowed: tuple[str | int | float, ...] = ()
    """The only allowed values; nulls are ignored."""
    max_mean_shift: Annotated[float, Field(gt=0)] | None = None
    """For a numeric feature: largest distance of the train rows' mean from the parent version's, in the parent's
    standard deviations."""
    max_psi: Annotated[float, Field(gt=0)] | None = None
    """For a feature: largest population stability index of the train rows against the parent version's. 0.1 is a
    small shift, 0.25 a large one."""

    @model_validator(mode="after")
    def _range_is_one(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min={self.min} is above max={self.max}; swap them")
        return self


class ExpectationsConfig(Section):
    """Checks made before any row is written; a failed check stops the commit."""

    min_rows: Positive | None = None
    """Fewest rows of all splits together."""
    max_rows: Positive | None = None
    """Most rows of all splits together."""
    columns: dict[str, ColumnExpectations] = {}
    """Checks by column of the query's result."""
