"""Names of columns that a dataset cannot have: they become attributes of Petastorm's rows and names of tensors. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sparkring.conf.schema import PrepareConfig, TimeSplit
from sparkring.errors import ConfigError, SparkringError
from sparkring.models.inputs import TOKENS
from sparkring.pipelines.data.dataset.row_schema import SPLIT_TIME
from sparkring.spark_jobs.etl.columns.roles import Role, can_name_a_column
from sparkring.spark_jobs.etl.columns.splits import split_key
from sparkring.spark_jobs.etl.encoding.arrays import require_pad
from sparkring.spark_jobs.etl.encoding.describe import made_tensors


def name_problems(config: PrepareConfig, roles: Iterable[Role]) -> Iterator[SparkringError]:
    """An error for each name of the config that a dataset's column cannot have.

    Args:
        config: Its features have no wildcards.
        roles: The columns of the query that the config names.
    """
    for role, name, _, _ in roles:
        if not can_name_a_column(name):
            yield ConfigError(f"{role}: {name!r} cannot name a dataset's column; give it a name of letters, digits and _ in the query "
                              "(AS), not beginning with a digit or _, and not a keyword of Python such as class.")
    features = config.features
    kept = (config.label, config.id_column, split_key(config).column, config.weight)
    for name in (*features.numbers, *features.categorical, *(raw.column for raw in features.raw),
                 *(bucket.column for bucket in features.buckets), *(hashed.column for hashed in features.hashed)):
        if name in kept:
            yield ConfigError(f"prepare.features holds {name}, which is the label, the row id, the split column or the weight, and a model "
                              "would learn little else; leave it out or, if a model may know it, give a copy of it another name in the "
                              "query.")
    yield from _problems_of_raw(config)
    for name in features.derived:
        if name in kept:
            yield ConfigError(f"prepare.features makes a column {name}, which is the name of the label, the row id, the split column or "
                              "the weight; give the latter another name in the query.")
    yield from _alike(config)


def _problems_of_raw(config: PrepareConfig) -> Iterator[SparkringError]:
    for raw in config.features.raw:
        try:
            require_pad(raw)
        except ConfigError as error:
            yield error
        if raw.column in made_tensors(config):
            yield ConfigError(f"prepare.features.raw: a batch has another tensor {raw.column}, made of other columns; give this column "
                              "another name in the query (AS).")


def _alike(config: PrepareConfig) -> Iterator[SparkringError]:
    """Columns that differ only in capitals, which Spark ignores."""
    features = config.features
    of_row = (config.id_column, config.label or TOKENS, *([config.weight] if config.weight is not None else []),
              *([SPLIT_TIME] if isinstance(config.split, TimeSplit) and config.split.rolls else []))
    names = (*features.numbers, *features.categorical, *features.derived, *([features.image.column] if features.image else []),
             *(raw.column for raw in features.raw))
    seen: dict[str, str] = {}
    for name in (*of_row, *(name for name in names if name not in of_row)):
        if name.lower() in seen:
            yield ConfigError(f"prepare makes two columns {seen[name.lower()]} and {name}, which Spark does not tell apart, since it "
                              "ignores capitals; give one of them another name.")
        seen[name.lower()] = name
