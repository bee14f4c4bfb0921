"""The split of a row, a function of the row alone and never of its file, partition or neighbours. Column expressions only.

    time     older rows train, newer rows validate and test
    hash     rows with an equal key stay together; a share of the keys goes to each split
    random   the same with the row id (of texts, the document's name) as the key, so each row falls on its own
    fold     the keys are dealt to k folds; fold i tests, the next one validates, the others train; or each fold is a split of its own
    column   a column names it

For hash, random and fold the key, cast to a string, is hashed with the seed: XXH64 of the key's UTF-8 bytes, seeded
with XXH64 (seed 42) of the eight little-endian bytes of ``seed``. Spark's ``xxhash64(seed, key)`` computes this, and so
does any XXH64 library, so the split of a key can be found without Spark.

    share   the hash's upper 53 bits / 2^53:   0.0 [ test )[ validation )[ train            ) 1.0
    fold    the hash modulo k, as a number from 0 to k - 1

Source: Collet, "XXH64 algorithm description", https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import Column, Row
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, StringType

from sparkring.conf.schema import ColumnSplit, FoldSplit, PrepareConfig, RandomSplit, TimeSplit
from sparkring.spark_jobs.etl.columns.expressions import EXACT_TEXT_TYPES, TEMPORAL_TYPES, named, seeded_hash

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class SplitKey:
    """The column that decides the split."""

    column: str
    types: tuple[type[DataType], ...]
    """Types that it may have."""
    expected: str
    """These types in words; the first word is a type to cast to."""


def split_key(config: PrepareConfig) -> SplitKey:
    """The column that decides a row's split, and what it must be."""
    match config.split:
        case TimeSplit(column=column):
            return SplitKey(column, TEMPORAL_TYPES, "timestamp")
        case ColumnSplit(column=column):
            return SplitKey(column, (StringType,), "string that says train, validation or test")
        case RandomSplit():
            tokens = config.features.tokens
            return SplitKey(tokens.document if tokens else config.id_column, EXACT_TEXT_TYPES, "string" if tokens else "bigint")
        case split:
            return SplitKey(split.column, EXACT_TEXT_TYPES, "string, whole number, decimal, date or timestamp")


def split_name(config: PrepareConfig) -> Column:
    """The split that a row belongs to; null where its key is null, or names no split."""
    key = named(split_key(config).column)
    match config.split:
        case TimeSplit() as split:
            return split_at(key.cast("timestamp"), split)
        case ColumnSplit():
            return sf.when(key.isin(*SPLITS), key)
        case FoldSplit() as split:
            fold = sf.pmod(seeded_hash(key, split.seed), sf.lit(split.folds))
            name = sf.when(key.isNull(), None)
            if split.fold is None:
                names = sf.array(*map(sf.lit, split.names))
                return name.when(_place(key, split.seed) < (split.test_share or 0.0), "test").otherwise(names[fold])
            name = name.when(fold == split.fold, "test")
            return name.when(fold == (split.fold + 1) % split.folds, "validation").otherwise("train")
        case split:
            place = _place(key, split.seed)
            name = sf.when(key.isNull(), None).when(place < split.test_share, "test")
            return name.when(place < split.test_share + split.validation_share, "validation").otherwise("train")


def split_names(config: PrepareConfig) -> tuple[str, ...]:
    """The splits that must have rows, in the order in which they are written."""
    if config.folds is None:
        return SPLITS
    return (*config.folds.names, *(SPLITS[2:] if config.folds.test_share else ()))


def train_sets(config: PrepareConfig) -> tuple[tuple[str, ...], ...]:
    """The splits that train together: ``train``; or for each fold of a version in folds all others."""
    if config.folds is None:
        return (SPLITS[:1],)
    names = config.folds.names
    return tuple(names[:fold] + names[fold + 1:] for fold in range(len(names)))


def trains(config: PrepareConfig) -> Column:
    """Whether a row trains, in any of the train sets."""
    return split_name(config).isin(*sorted({name for names in train_sets(config) for name in names}))


def split_at(moment: Column, split: TimeSplit) -> Column:
    """The split of a moment, by a split with moments; null where it is null."""
    validation_from, test_from = split.borders
    name = sf.when(moment < _instant(validation_from), "train").when(moment < _instant(test_from), "validation")
    return name.when(moment.isNotNull(), "test")


def key_figures(config: PrepareConfig, counted: Column) -> list[Column]:
    """Aggregates over the rows where ``counted``: the key's range, ``first`` and ``last``, and its number of values,
    ``keys``.
    """
    key = named(split_key(config).column)
    text = sf.date_format(key.cast("timestamp"), "yyyy-MM-dd'T'HH:mm:ssXXX") if isinstance(config.split, TimeSplit) else key.cast("string")
    seen = sf.when(counted, text)
    return [sf.min(seen).alias("first"), sf.max(seen).alias("last"), sf.approx_count_distinct(seen).alias("keys")]


def why_empty(config: PrepareConfig, name: str, found: Row) -> str:
    """Explain in one line why the split ``name`` is empty, given the rows' ``key_figures``, and what to change."""
    column = split_key(config).column
    match config.split:
        case TimeSplit() as split:
            borders = " and ".join(border.astimezone(UTC).isoformat() for border in split.borders)
            return (f"the {name} split is empty: {column} reaches from {found['first']} to {found['last']}, and validation_from and "
                    f"test_from are {borders}; choose both inside that range (prepare.split).")
        case ColumnSplit():
            return f"the {name} split is empty: no row has {column} = '{name}'; each of {', '.join(SPLITS)} needs one."
        case FoldSplit(folds=folds, test_share=share):
            asked = f"{folds} folds{f' and test_share={share:g}' if share else ''}"
        case split:
            asked = f"validation_share={split.validation_share:g} and test_share={split.test_share:g}"
    return (f"the {name} split is empty: {column} has about {found['keys']} different values, too few for {asked}; "
            "set other shares, fewer folds or a key with more values (prepare.split).")


def _place(key: Column, seed: int) -> Column:
    """The key's place from 0 to 1."""
    return sf.shiftrightunsigned(seeded_hash(key, seed), 11).cast("double") / sf.lit(2.0**53)


def _instant(moment: datetime) -> Column:
    return sf.timestamp_micros(sf.lit(round(moment.timestamp() * 1_000_000)))
