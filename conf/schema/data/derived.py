"""Features that are computed from a column: parts of dates and timestamps, buckets of numbers, hashes of texts.

A section names the source column. Fitted values (means, vocabularies, quantiles) come from train rows and are kept in the manifest.
The columns of the dataset are named here: ``departure_hour``, ``departure_hour_sin``, ``price_bucket``, ``agent_hash``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal, Self, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator, model_validator

from sparkring.conf.schema.base.section import Section, Seed

DatePart = Literal["year", "quarter", "month", "week", "day", "day_of_week", "day_of_year", "hour", "minute", "second"]
"""Months, days and weeks count from 1, hours from 0; weeks are ISO's, and Monday is day 1 of one."""
NumberPart = Literal[DatePart, "days"]
"""``days``: days since 1970, with the time of day as a fraction."""
CyclePart = Literal["quarter", "month", "day", "day_of_week", "day_of_year", "hour", "minute", "second"]
Wave = Literal["sin", "cos"]
WAVES: tuple[Wave, ...] = get_args(Wave)


class MomentConfig(Section):
    """A date or timestamp, taken apart. At least one of ``numbers``, ``waves`` and ``categories``."""

    column: str
    """A date or timestamp column of the query."""
    numbers: tuple[NumberPart, ...] = ()
    """Parts that become one standardised number each."""
    waves: tuple[CyclePart, ...] = ()
    """Parts that become two numbers each, sine and cosine of their position in the cycle, so that 23 h is close to 0
    h."""
    categories: tuple[DatePart, ...] = ()
    """Parts that become one id each, like a column under ``categorical``."""
    time_zone: str = "UTC"
    """Time zone in which a timestamp is taken apart, daylight saving time included, e.g. ``America/New_York``."""

    @field_validator("time_zone")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError("unknown time zone; give an IANA name such as UTC or Europe/Zurich") from None
        return name

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not (self.numbers or self.waves or self.categories):
            raise ValueError(f"nothing is made of {self.column}; name parts of it under numbers, waves or categories, e.g. waves: [hour]")
        return self

    def numeric(self) -> Iterator[tuple[str, NumberPart, Wave | None]]:
        """Name, part and wave of each number."""
        yield from ((f"{self.column}_{part}", part, None) for part in self.numbers)
        yield from ((f"{self.column}_{part}_{wave}", part, wave) for part in self.waves for wave in WAVES)

    def categorical(self) -> Iterator[tuple[str, DatePart]]:
        """Name and part of each id."""
        yield from ((f"{self.column}_{part}", part) for part in self.categories)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Columns of the dataset."""
        return (*(name for name, _, _ in self.numeric()), *(name for name, _ in self.categorical()))


class BucketConfig(Section):
    """A number that becomes the id of the range it falls into; id 0 is null. One of ``quantiles`` and ``edges``."""

    column: str
    """A numeric column of the query."""
    quantiles: Annotated[int, Field(ge=2, le=1000)] | None = None
    """Ranges that hold equally many train rows each."""
    edges: Annotated[tuple[float, ...], Field(min_length=1, max_length=999)] | None = None
    """Borders, ascending. A range begins at its border: ``[18, 65]`` makes below 18, 18 to below 65, 65 and above."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.quantiles is None) == (self.edges is None):
            raise ValueError(f"{self.column} needs either quantiles (fitted on train rows) or edges (given), "
                             f"found {'neither' if self.edges is None else 'both'}; give one of them")
        for before, after in pairwise(self.edges or ()):
            if before >= after:
                raise ValueError(f"edges of {self.column} do not ascend: {after:g} follows {before:g}; sort them and leave doubles out")
        return self

    @property
    def output(self) -> str:
        """The dataset's column."""
        return f"{self.column}_bucket"


class HashConfig(Section):
    """A text of very many values that becomes an id below ``ids`` by its hash, without a vocabulary; id 0 is null."""

    column: str
    """A column of the query: text, whole number, decimal, boolean, date or timestamp."""
    ids: Annotated[int, Field(ge=2, le=2**31 - 1)]
    """Number of ids, 0 included. Values with the same id are the same to the network: of v values, each shares its id
    with about v / ids others."""
    seed: Seed = 0
    """Determines which values share an id."""

    @property
    def output(self) -> str:
        """The dataset's column."""
        return f"{self.column}_hash"
