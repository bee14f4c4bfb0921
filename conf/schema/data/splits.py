"""How rows are split into train, validation and test: ``prepare.split``, told apart by ``by``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from sparkring.conf.schema.base.section import Section, Seed, Share

_HOURS = {"h": 1, "d": 24, "w": 7 * 24}
_MOST_HOURS = 1000 * 365 * 24


def _hours_of(age: str) -> int:
    """The hours of an age; of one that is too long, one too many. Of its number nine digits are enough to tell."""
    return min(int(age[:-1][:9]) * _HOURS[age[-1]], _MOST_HOURS + 1)


def _not_too_long(age: str) -> str:
    if _hours_of(age) > _MOST_HOURS:
        raise ValueError(f"{age} is more than 1000 years; give a shorter age")
    return age


Age = Annotated[str, Field(pattern=r"^[1-9]\d*[hdw]$"), AfterValidator(_not_too_long)]
"""A length of time in hours, days or weeks, at most 1000 years: ``12h``, ``30d``, ``4w``."""
IN_PLACE_OF = {"validation_from": "validation", "test_from": "test", "validation": "validation_from", "test": "test_from"}
"""Keys of a split by time of which one is given: a config that gives it takes the other one out of the config that it extends."""


def length_of(age: Age) -> timedelta:
    """The length of time that an age stands for."""
    return timedelta(hours=_hours_of(age))


class TimeSplit(Section):
    """Train, validation and test by time: training on older rows, evaluation on newer ones.

    Either by moments (``validation_from``, ``test_from``), which never move; or by ages (``validation``, ``test``), counted back from the
    newest row. Ages let the split roll: each ``prepare --append`` counts them anew, so that rows of the earlier test and validation
    splits reach training as they age.
    """

    by: Literal["time"] = "time"
    column: str
    """A timestamp column of the query's result."""
    validation_from: datetime | None = None
    """First moment of validation (UTC); earlier rows are for training."""
    test_from: datetime | None = None
    """First moment of test (UTC)."""
    validation: Age | None = None
    """In place of ``validation_from``: the length of time before the test rows, e.g. ``30d``, that is for validation."""
    test: Age | None = None
    """In place of ``test_from``: the length of time up to the newest row, e.g. ``30d``, that is for test."""

    @property
    def rolls(self) -> bool:
        """Whether the split is by ages."""
        return self.test is not None

    @property
    def borders(self) -> tuple[datetime, datetime]:
        """First moments of validation and of test, of a split by moments; each with its time zone."""
        assert self.validation_from is not None
        assert self.test_from is not None
        return _in_zone(self.validation_from), _in_zone(self.test_from)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        given = [name for name in ("validation_from", "test_from", "validation", "test") if getattr(self, name) is not None]
        if given not in (["validation_from", "test_from"], ["validation", "test"]):
            raise ValueError(f"a split by time needs validation_from and test_from, or the ages validation and test; found "
                             f"{', '.join(given) or 'neither'}")
        if not self.rolls and self.borders[0] >= self.borders[1]:
            raise ValueError(f"validation_from={self.validation_from} is not before test_from={self.test_from}; swap them, or "
                             "move one")
        return self


def _in_zone(moment: datetime) -> datetime:
    """A moment without a time zone is one of UTC."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


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


MOST_FOLDS = 100
"""Of one version: each is written, and fitted without, on its own."""


def fold_name(fold: int) -> str:
    """The split of a version in folds that holds this fold."""
    return f"fold-{fold}"


class FoldSplit(Section):
    """k folds for cross-validation: all of them in one version, or one version for each ``fold``."""

    by: Literal["fold"]
    column: str
    """The key, a column of the query's result; rows with an equal key are in one fold. Name the row id to split
    single rows."""
    folds: Annotated[int, Field(ge=2)]
    """k, at least 2; at least 3 with ``fold``, and at most 100 without."""
    fold: Annotated[int, Field(ge=0)] | None = None
    """Null: all folds are in one version, and each is left out of training once (``sparkring cross-validate``). A
    number: this fold is test, the next one (after the last: the first) validation, and the others train."""
    test_share: Share | None = None
    """Without ``fold``: share of the keys that are in no fold but in the test split. Null: there is no test split."""
    seed: Seed = 1
    """Determines which keys go to which fold."""

    @property
    def names(self) -> tuple[str, ...]:
        """The folds of a version that holds all of them."""
        return tuple(map(fold_name, range(self.folds)))

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.fold is None:
            if self.folds > MOST_FOLDS:
                raise ValueError(f"folds={self.folds} are more than the {MOST_FOLDS} that a version may hold; give fewer")
            return self
        if self.fold >= self.folds:
            raise ValueError(f"fold={self.fold} is not one of the {self.folds} folds; give 0 to {self.folds - 1}")
        if self.folds == 2:
            raise ValueError("folds=2 leave nothing to train on beside a test and a validation fold; give at least 3, or leave fold out")
        if self.test_share is not None:
            raise ValueError(f"test_share={self.test_share:g} is for a version of all folds, and here fold {self.fold} is the test split; "
                             "leave one of the two out")
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
