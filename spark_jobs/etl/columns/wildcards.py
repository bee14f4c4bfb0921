"""Wildcards among the names of features, e.g. ``px_*``, and the columns of the query that they stand for. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from sparkring.conf.schema import FeaturesConfig
from sparkring.errors import ConfigError, together


def is_wildcard(name: str) -> bool:
    """Whether a name stands for several columns."""
    return any(sign in name for sign in "*?[")


def expanded(features: FeaturesConfig, columns: Sequence[str], *, kept: Collection[str]) -> FeaturesConfig:
    """Replace each wildcard by the columns that fit it.

    Args:
        features: The features as the config names them.
        columns: The columns of the query, in its order.
        kept: Columns that no wildcard stands for: row id, label and split column.
    Returns:
        The features without wildcards. A column that a list names itself is not taken once more by a wildcard of that list.
    Raises:
        ConfigError: a wildcard fits no column, or a column is a feature twice; the error names all such.
    """
    free = [column for column in columns if column not in kept]
    numeric = {number.column: _fitting(number.column, features.numbers, free) for number in features.numeric}
    categorical = {name: _fitting(name, features.categorical, free) for name in features.categorical}
    problems = [*_unused("numeric", numeric, free), *_unused("categorical", categorical, free),
                *_twice(features, {"numeric": numeric, "categorical": categorical})]
    if problems:
        raise together(problems)
    return features.model_copy(update={
        "numeric": tuple(number.model_copy(update={"column": name}) for number in features.numeric for name in numeric[number.column]),
        "categorical": tuple(name for names in categorical.values() for name in names)})


def _fitting(name: str, named: Collection[str], free: Sequence[str]) -> list[str]:
    """The columns that a name of a list stands for."""
    return [column for column in free if column not in named and fnmatchcase(column, name)] if is_wildcard(name) else [name]


def _unused(kind: str, found: dict[str, list[str]], free: Sequence[str]) -> Iterator[ConfigError]:
    for name, columns in found.items():
        if not columns:
            yield ConfigError(f"prepare.features.{kind}: no column of the query fits {name}; it yields {', '.join(free) or 'none'} beside "
                              "row id, label and split column.")


def _twice(features: FeaturesConfig, found: dict[str, dict[str, list[str]]]) -> Iterator[ConfigError]:
    """Columns that two names stand for, at least one of them a wildcard; the config itself refuses a name that it holds twice."""
    places: dict[str, list[str]] = {}
    for kind, names in found.items():
        for name, columns in names.items():
            _note(places, columns, f"{kind} ({name})" if is_wildcard(name) else kind)
    _note(places, [features.image.column] if features.image else [], "image")
    _note(places, (raw.column for raw in features.raw), "raw")
    _note(places, features.derived, "a derived feature")
    for column, where in places.items():
        if len(where) > 1:
            yield ConfigError(f"prepare.features: column {column} is {' and '.join(where)}; name it once, or narrow the wildcard.")


def _note(places: dict[str, list[str]], columns: Iterable[str], where: str) -> None:
    for column in columns:
        places.setdefault(column, []).append(where)
