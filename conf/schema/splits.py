"""How rows are split into train, validation and test: ``prepare.split``, told apart by ``by``."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from sparkring.conf.schema.section import Section, Seed, Share


class TimeSplit(Section):
    """Train, validation and test by time: training on older rows, evaluation on newer ones."""

    by: Literal["time"] = "time"
    column: str
    """A timestamp column of the query's result."""
    validation_from: datetime
    """First moment of validation (UTC); earlier rows are for training."""
    test_from: datetime
    """First moment of test (UTC)."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.validation_from >= self.test_from:
            raise ValueError(f"validation_from={self.validation_from} is not before test_from={self.test_from}; swap them, or "
                             "move one")
        return self


class _ShareSplit(Section):
    """The fields of all splits by shares."""

    validation_share: Share = 0.1
    """Share of the rows for validation."""
    test_share: Share = 0.1
    """Share of the rows for test; the rest is for training."""
    seed: Seed = 1
    """Determines which rows go to which split."""

    @model_validator(mode="after")
    def _some_train(self) -> Self:
        if self.validation_share + self.test_share >= 1:
            raise ValueError(f"validation_share={self.validation_share} and test_share={self.test_share} leave nothing to train on; "
                             "give shares whose sum is below 1")
        return self


class HashSplit(_ShareSplit):
    """By the hash of a key: rows with an equal key go to the same split, in any file and also when rows are
    appended.
    """

    by: Literal["hash"]
    column: str
    """The key, a column of the query's result: a customer, a patient, a file."""


class RandomSplit(_ShareSplit):
    """At random: by the hash of the row id."""

    by: Literal["random"]


class FoldSplit(Section):
    """One of k folds for cross-validation: over ``fold`` = 0 .. k - 1 each key is in test once and in validation
    once.
    """

    by: Literal["fold"]
    column: str
    """The key, a column of the query's result; rows with an equal key are in one fold. Name the row id to split
    single rows."""
    folds: Annotated[int, Field(ge=3)]
    """k, at least 3: one fold is test, one validation, the others train."""
    fold: Annotated[int, Field(ge=0)]
    """The test fold; the next one (after the last: the first) is validation."""
    seed: Seed = 1
    """Determines which keys go to which fold."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.fold >= self.folds:
            raise ValueError(f"fold={self.fold} is not one of the {self.folds} folds; give 0 to {self.folds - 1}")
        return self


class ColumnSplit(Section):
    """By a column, for data that comes with its splits."""

    by: Literal["column"]
    column: str
    """A text column of the query's result: ``train``, ``validation`` or ``test``."""


def _kind_of_split(value: object) -> str:
    """The ``by`` of a split; default time."""
    return str(value.get("by", "time") if isinstance(value, dict) else getattr(value, "by", None))


SplitConfig = Annotated[
    Annotated[TimeSplit, Tag("time")] | Annotated[HashSplit, Tag("hash")] | Annotated[RandomSplit, Tag("random")]
    | Annotated[FoldSplit, Tag("fold")] | Annotated[ColumnSplit, Tag("column")],
    Discriminator(_kind_of_split, custom_error_type="no_such_split", custom_error_message="by must be time, hash, random, fold or column")]
"""How rows are split, told apart by the key ``by``."""
