"""The names and types that columns may have by their role, for the query and for raw rows to score. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from keyword import iskeyword
from typing import NamedTuple

from pyspark.sql.types import ArrayType, BinaryType, BooleanType, DataType, FractionalType, IntegralType, NumericType, StringType

from sparkring.conf.schema import FeaturesConfig, MomentConfig, PrepareConfig
from sparkring.pipelines.data.dataset.preprocessing import MomentPart, Preprocessing
from sparkring.spark_jobs.etl.columns.expressions import EXACT_TEXT_TYPES, TEMPORAL_TYPES
from sparkring.spark_jobs.etl.columns.splits import split_key

_NUMBERS: tuple[type[DataType], ...] = (NumericType, BooleanType)
_TEXTS: tuple[type[DataType], ...] = (*EXACT_TEXT_TYPES, FractionalType)


def can_name_a_column(name: str) -> bool:
    """Whether a dataset's column may have the name."""
    return name.isidentifier() and not name.startswith("_") and not iskeyword(name)


class Role(NamedTuple):
    """A column and what it is used for."""

    key: str
    """The config key that names it."""
    column: str
    kinds: tuple[type[DataType], ...]
    """Types that it may have."""
    expected: str
    """The types in words."""


def roles_of_query(config: PrepareConfig) -> list[Role]:
    """Every column that the config names: the row id first, then label, split column and features."""
    key, tokens = split_key(config), config.features.tokens
    split = Role("prepare.split.column", key.column, key.types, key.expected)
    if tokens:
        return [Role("prepare.features.tokens.document", tokens.document, (StringType,), "string"),
                Role("prepare.features.tokens.column", tokens.column, (StringType, BinaryType), "string"), split]
    weight = [] if config.weight is None else [Role("prepare.weight", config.weight, _NUMBERS, "double")]
    return [role_of_row_id(config.id_column), _label(config), split, *weight, *_roles_of_features(config.features)]


def role_of_row_id(column: str) -> Role:
    """The role of the row id."""
    return Role("prepare.row_id", column, (IntegralType,), "bigint")


def roles_of_model(fitted: Preprocessing) -> list[Role]:
    """Every source column of a model's features."""
    parts = [feature for feature in (*fitted.numeric, *fitted.categorical) if feature.moment]
    return [*([_image(fitted.image.column)] if fitted.image else []),
            *(_number(feature.column) for feature in fitted.numeric if not feature.moment),
            *(_category(feature.column) for feature in fitted.categorical if not feature.moment),
            *(_moment(name) for name in dict.fromkeys(feature.source for feature in parts)),
            *(_bucket(feature.of) for feature in fitted.buckets), *(_hashed(feature.of) for feature in fitted.hashed)]


def moments_of_model(fitted: Preprocessing) -> list[MomentConfig]:
    """The dates and timestamps behind a model's features, each with the parts that are taken of it."""
    found: dict[tuple[str, str], list[MomentPart]] = {}
    for feature in (*fitted.numeric, *fitted.categorical):
        if feature.moment:
            found.setdefault((feature.moment.of, feature.moment.time_zone), []).append(feature.moment)
    return [MomentConfig(column=column, time_zone=time_zone, numbers=tuple(moment.part for moment in moments))
            for (column, time_zone), moments in found.items()]


def _label(config: PrepareConfig) -> Role:
    if config.task == "binary":
        return Role("prepare.label", config.label, _NUMBERS, "int (0 or 1)")
    if config.task == "regression":
        return Role("prepare.label", config.label, (NumericType,), "a number")
    return Role("prepare.label", config.label, (IntegralType, StringType), "string or bigint")


def _roles_of_features(features: FeaturesConfig) -> Iterator[Role]:
    if features.image:
        yield _image(features.image.column)
    for raw in features.raw:
        kinds, expected = ((ArrayType,), "array of numbers") if raw.shape else (_NUMBERS, "double")
        yield Role("prepare.features.raw", raw.column, kinds, expected)
    yield from map(_number, features.numbers)
    yield from map(_category, features.categorical)
    yield from (_moment(moment.column) for moment in features.moments)
    yield from (_bucket(bucket.column) for bucket in features.buckets)
    yield from (_hashed(hashed.column) for hashed in features.hashed)


def _image(column: str) -> Role:
    return Role("prepare.features.image.column", column, (BinaryType,), "binary")


def _number(column: str) -> Role:
    return Role("prepare.features.numeric", column, _NUMBERS, "double")


def _category(column: str) -> Role:
    return Role("prepare.features.categorical", column, _TEXTS, "string")


def _moment(column: str) -> Role:
    return Role("prepare.features.moments", column, TEMPORAL_TYPES, "timestamp")


def _bucket(column: str) -> Role:
    return Role("prepare.features.buckets", column, _NUMBERS, "double")


def _hashed(column: str) -> Role:
    return Role("prepare.features.hashed", column, EXACT_TEXT_TYPES, "string, whole number, decimal, boolean, date or timestamp")
