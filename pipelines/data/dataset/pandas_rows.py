"""Encode raw rows of a table without Spark, exactly as ``spark_jobs/etl/encoding/table_features.py`` encodes them with it.

    numbers       numbers or booleans; NaN, None and infinities count as null
    categories    text, as Spark's ``CAST(x AS STRING)`` writes it; whole numbers and booleans are written so here
    moments       dates or timestamps; without a time zone they are UTC

Needs pandas, and xxhash for hashed features. Images and texts are not encoded here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sparkring.errors import SourceError, nearest
from sparkring.pipelines.data.dataset.preprocessing import (
    CYCLES,
    BucketFeature,
    CategoricalFeature,
    HashFeature,
    MomentPart,
    NumericFeature,
    Preprocessing,
)
from sparkring.pipelines.data.dataset.stored_columns import Numbers, scaled, usable

Number = TypeVar("Number", np.float32, np.int64)
_MICROSECONDS_A_DAY = 86_400e6
_XXH64_SEED = 42
_PARTS: dict[str, Callable[[pd.DatetimeIndex], Any]] = {
    "year": lambda shown: shown.year, "quarter": lambda shown: shown.quarter, "month": lambda shown: shown.month,
    "week": lambda shown: shown.isocalendar().week, "day": lambda shown: shown.day, "day_of_week": lambda shown: shown.dayofweek + 1,
    "day_of_year": lambda shown: shown.dayofyear, "hour": lambda shown: shown.hour, "minute": lambda shown: shown.minute,
    "second": lambda shown: shown.second}


def encode_rows(rows: pd.DataFrame, preprocessing: Preprocessing) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Encode raw rows as the numbers that a network for tables takes.

    Args:
        rows: The source columns of all features; others are ignored.
        preprocessing: The fitted figures.
    Returns:
        Numbers with their null indicators (rows, numeric_columns), and ids (rows, with_ids).
    Raises:
        SourceError: a column is missing, or holds something else than its feature takes.
    """
    numbers = [_number(rows, feature) for feature in preprocessing.numeric]
    scaled_numbers = [scaled(number, feature) for number, feature in zip(numbers, preprocessing.numeric, strict=True)]
    missing = [np.isnan(number) for number, feature in zip(numbers, preprocessing.numeric, strict=True) if feature.indicator]
    ids = [*(_looked_up(rows, feature) for feature in preprocessing.categorical),
           *(_bucket(rows, feature) for feature in preprocessing.buckets), *(_hashed(rows, feature) for feature in preprocessing.hashed)]
    columns: list[NDArray[Any]] = [*scaled_numbers, *missing]
    return _matrix(columns, len(rows), np.float32), _matrix(ids, len(rows), np.int64)


def _number(rows: pd.DataFrame, feature: NumericFeature) -> Numbers:
    """The value before it is filled."""
    return usable(_part(rows, feature.moment) if feature.moment else _numbers(rows, feature.column), feature)


def _looked_up(rows: pd.DataFrame, feature: CategoricalFeature) -> NDArray[np.int64]:
    ids = {value: place for place, value in enumerate(feature.vocabulary, start=1)}
    if feature.moment:
        texts: Iterable[str | None] = (None if math.isnan(part) else str(int(part)) for part in _part(rows, feature.moment))
    else:
        texts = _texts(rows, feature.column)
    return np.fromiter((0 if text is None else ids.get(text, 0) for text in texts), np.int64, len(rows))


def _bucket(rows: pd.DataFrame, feature: BucketFeature) -> NDArray[np.int64]:
    value = _numbers(rows, feature.of)
    return np.where(np.isfinite(value), 1 + np.searchsorted(feature.edges, value, side="right"), 0)


def _hashed(rows: pd.DataFrame, feature: HashFeature) -> NDArray[np.int64]:
    from xxhash import xxh64_intdigest

    seed = xxh64_intdigest(struct.pack("<q", feature.seed), _XXH64_SEED)

    def hashed(text: str) -> int:
        number = xxh64_intdigest(text.encode(errors="replace"), seed)
        signed = number - 2**64 if number >= 2**63 else number
        return 1 + signed % (feature.ids - 1)

    return np.fromiter((0 if text is None else hashed(text) for text in _texts(rows, feature.of)), np.int64, len(rows))


def _part(rows: pd.DataFrame, moment: MomentPart) -> Numbers:
    """The number that a clock of the time zone shows at an instant."""
    try:
        instants = pd.DatetimeIndex(pd.to_datetime(_column(rows, moment.of), utc=True))
    except (TypeError, ValueError) as error:
        raise SourceError(f"column {moment.of} holds something else than dates and timestamps ({_first_line(error)}); "
                          "bring it as the model's query yields it.") from None
    value: Numbers
    shown = instants.tz_convert(ZoneInfo(moment.time_zone)).tz_localize(None)  # pytz, pandas' default, rounds offsets of before 1900
    if moment.part == "days":
        value = np.asarray((shown - pd.Timestamp(0)) / pd.Timedelta(microseconds=1), np.float64) / _MICROSECONDS_A_DAY
    else:
        value = np.asarray(pd.Series(_PARTS[moment.part](shown)).astype("Float64").to_numpy(na_value=np.nan), np.float64)
    if moment.wave is None:
        return value
    first, period = CYCLES[moment.part]
    angle = (value - first) * (2 * math.pi / period)
    return np.sin(angle) if moment.wave == "sin" else np.cos(angle)


def _numbers(rows: pd.DataFrame, name: str) -> Numbers:
    try:
        return pd.to_numeric(_column(rows, name)).to_numpy(np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise SourceError(f"column {name} holds something else than numbers ({_first_line(error)}); "
                          "bring it as the model's query yields it.") from None


def _texts(rows: pd.DataFrame, name: str) -> Iterable[str | None]:
    for value in _column(rows, name):
        if isinstance(value, str):
            yield value
        elif isinstance(value, bool | np.bool_):
            yield "true" if value else "false"
        elif isinstance(value, int | np.integer):
            yield str(value)
        elif pd.isna(value):
            yield None
        else:
            raise SourceError(f"column {name} holds a {type(value).__name__} where the model takes text; bring it as text, as Spark's "
                              f"CAST({name} AS STRING) writes it.")


def _column(rows: pd.DataFrame, name: str) -> pd.Series[Any]:
    if name not in rows.columns:
        raise SourceError(f"the rows have no column {name}{nearest(name, map(str, rows.columns))}; bring all columns that the model's "
                          "features are made of.")
    return rows[name]


def _matrix(columns: Sequence[NDArray[Any]], num_rows: int, dtype: type[Number]) -> NDArray[Number]:  # (rows, columns)
    return np.stack(columns, axis=1).astype(dtype) if columns else np.empty((num_rows, 0), dtype)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].replace("; ", ", ")[:120]
