"""The value of a feature before it is scaled or looked up: a column, or a value derived from it. Pure.

    a part of a moment    year, hour and others in a time zone, or sine and cosine of its place in the cycle
    a bucket              which range a number falls into
    a hash                an id from a text's XXH64

``fit.py`` fits on these values and ``table_features.py`` encodes them, so both see the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, DateType, TimestampType

from sparkring.conf.schema import MomentConfig
from sparkring.errors import SourceError
from sparkring.pipelines.data.dataset.preprocessing import CYCLES, BucketFeature, HashFeature, MomentPart
from sparkring.spark_jobs.etl.columns.expressions import finite, named, seeded_hash

_TIMES_OF_DAY = ("hour", "minute", "second")
"""Parts that a date does not have."""
_SECONDS_A_DAY = 86_400
_PARTS: dict[str, Callable[[Column], Column]] = {
    "year": sf.year, "quarter": sf.quarter, "month": sf.month, "week": sf.weekofyear, "day": sf.dayofmonth,
    "day_of_week": lambda moment: sf.weekday(moment) + 1, "day_of_year": sf.dayofyear,
    "hour": sf.hour, "minute": sf.minute, "second": sf.second,
    "days": lambda moment: sf.unix_micros(moment) / (1e6 * _SECONDS_A_DAY)}


def value_of(column: str, moment: MomentPart | None) -> Column:
    """The column itself, or the part of a moment; null where that is null."""
    return named(column) if moment is None else _part(moment)


def bucket_of(feature: BucketFeature) -> Column:
    """The bucket's id, never null."""
    value = finite(named(feature.of))
    return sf.when(value.isNull(), 0).otherwise(_search(value, feature.edges, first=1))


def hash_of(feature: HashFeature) -> Column:
    """The id by hash, never null."""
    text = named(feature.of).cast("string")
    number = 1 + sf.pmod(seeded_hash(text, feature.seed), sf.lit(feature.ids - 1).cast("bigint"))
    return sf.when(text.isNull(), 0).otherwise(number.cast("int"))


def check_moments(moments: Sequence[MomentConfig], types: Mapping[str, DataType], *, rows: str = "the query", remedy: str = "") -> None:
    """Check that columns have the parts that are taken of them: a date has no hour, and only an instant depends on the time zone.

    Args:
        moments: The parts to take.
        types: Type of each column of the rows, by name.
        rows: What these rows are, for errors.
        remedy: What to do; default: change the config or the query.
    Raises:
        SourceError: a part or a time zone that a column's type rules out.
    """
    for moment in moments:
        kind = types[moment.column]
        timed = [part for part in (*moment.numbers, *moment.waves, *moment.categories) if part in _TIMES_OF_DAY]
        if timed and isinstance(kind, DateType):
            raise SourceError(f"prepare.features.moments asks for the {timed[0]} of {moment.column}, which is a date in {rows}; "
                              f"{remedy or 'leave that part out, or yield a timestamp'}.")
        if moment.time_zone != "UTC" and not isinstance(kind, TimestampType):
            raise SourceError(f"prepare.features.moments reads {moment.column} in the time zone {moment.time_zone}, but it is "
                              f"{kind.simpleString()} in {rows}, which is not an instant; "
                              f"{remedy or 'leave time_zone out, or yield a timestamp'}.")


def _part(moment: MomentPart) -> Column:
    """The number that a clock of the time zone shows at an instant (the session's time zone is UTC)."""
    shown = sf.from_utc_timestamp(named(moment.of).cast("timestamp"), moment.time_zone)
    value = _PARTS[moment.part](shown)
    if moment.wave is None:
        return value
    first, period = CYCLES[moment.part]
    angle = (value - first) * (2 * math.pi / period)
    return sf.sin(angle) if moment.wave == "sin" else sf.cos(angle)


def _search(value: Column, edges: Sequence[float], *, first: int) -> Column:
    """``first`` plus the number of edges at or below the value, by binary search."""
    if not edges:
        return sf.lit(first)
    middle = len(edges) // 2
    below, above = _search(value, edges[:middle], first=first), _search(value, edges[middle + 1:], first=first + middle + 1)
    return sf.when(value < float(edges[middle]), below).otherwise(above)
