"""A numeric column: how nulls are filled, and how it is scaled. In YAML a name alone, or a section.

    numeric:
      - distance                                                  # a null counts as the mean, scaled to mean 0 and deviation 1
      - {column: seats, fill: median, scale: robust, indicator: true}
      - {column: rain, fill: 0, scale: log1p}

Fitted values (mean, median, quartiles, ...) come from train rows and are kept in the manifest.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import (
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from sparkring.conf.schema.base.section import Section

FillBy = Literal["mean", "median", "constant"]
Scale = Literal["standard", "min_max", "robust", "log1p", "none"]


class NumberConfig(Section):
    """A column that becomes one float32."""

    column: str
    """A numeric or boolean column of the query."""
    fill: Literal["mean", "median"] | float = "mean"
    """Replaces nulls and values that are not finite: the mean or median of the train rows, or a given number."""
    scale: Scale = "standard"
    """Applied after filling. standard: minus the mean, over the deviation. min_max: the train rows' range becomes 0
    to 1. robust: minus the median, over the distance of the quartiles. log1p: ln(1 + x); no train row may be -1 or
    less; later rows that are count as nulls. none: unchanged."""
    indicator: bool = False
    """Add a column ``<column>_is_null`` that is 1 where a null was filled, else 0."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, given: Any) -> Any:
        return {"column": given} if isinstance(given, str) else given

    @field_validator("fill", mode="wrap")
    @classmethod
    def _figure_or_number(cls, given: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        try:
            return validate(given)
        except ValidationError:
            raise ValueError("neither a known word nor a finite number; give mean, median or a number") from None

    @model_validator(mode="after")
    def _has_a_logarithm(self) -> Self:
        if self.scale == "log1p" and isinstance(self.fill, float) and self.fill <= -1:
            raise ValueError(f"{self.column} is filled with {self.fill:g}, which has no ln(1 + x); give a number above -1")
        return self

    @model_serializer(mode="wrap")
    def _as_short_as_it_goes(self, section: SerializerFunctionWrapHandler) -> Any:
        """A name alone where all else has its default."""
        return self.column if self == NumberConfig(column=self.column) else section(self)

    @property
    def fill_by(self) -> FillBy:
        """The kind of ``fill``."""
        return self.fill if isinstance(self.fill, str) else "constant"

    @property
    def indicator_column(self) -> str | None:
        """The dataset's column that marks filled values, if there is one."""
        return f"{self.column}_is_null" if self.indicator else None
