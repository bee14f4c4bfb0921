"""From source tables to a dataset version: ``prepare``."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sparkring.conf.schema.base.section import Positive, Section, Seed
from sparkring.conf.schema.data.expectations import ExpectationsConfig
from sparkring.conf.schema.data.features import FeaturesConfig
from sparkring.conf.schema.data.sources import AnySource
from sparkring.conf.schema.data.splits import FoldSplit, SplitConfig, TimeSplit

Task = Literal["binary", "multiclass", "regression", "next_token", "masked_tokens"]
"""The prediction: a label of 0 or 1, one of several classes, a number, each next token of a sequence, or its masked tokens."""
TEXT_TASKS: tuple[Task, ...] = ("next_token", "masked_tokens")
"""The tasks of rows of tokens, which are their own labels."""


class PrepareConfig(Section):
    """From source tables to a committed dataset version."""

    sources: dict[str, AnySource]
    """Tables by the name that the query uses."""
    query: str
    """Spark SQL over ``sources`` that yields one row per example, with a label, a split column, features and perhaps a
    row id."""
    row_id: str | None = None
    """Column of the result that identifies a row: a unique, non-null bigint. Default: the column ``row_id``; if the
    query yields none, ``prepare`` makes one of each row's content."""
    task: Task = "binary"
    """What is predicted: a label of 0 or 1, one of several classes, a number, each next token of a text, or its masked tokens."""
    label: str = ""
    """Column of the result to predict; rows where it is null are left out. Binary: 0 or 1. Multiclass: a number or
    text; each value in the train split is a class. Regression: a number. Next token and masked tokens: none, since the text
    is its own label."""
    weight: str | None = None
    """Column of the result with the weight of each row in training: 0, or a number from 1e-15 to 1e15. A step then learns from the
    weighted mean of its rows' losses. Held-out metrics count each row once. Null: so does training."""
    features: FeaturesConfig
    split: SplitConfig
    expectations: ExpectationsConfig = ExpectationsConfig()
    """Checks before rows are written; none by default. All but the limits of drift need the extra ``sparkring[expectations]``."""
    min_category_rows: Positive = 20
    """A category gets its own id if it has at least this many train rows; rarer ones share id 0."""
    row_group_mb: Annotated[float, Field(gt=0)] = 16.0
    """Decoded size of a Parquet row group, in megabytes: the unit in which ranks read."""
    min_row_groups: Positive = 96
    """Fewest row groups of a split, if it has enough rows, so that every lane has its own."""
    num_files: Positive = 4
    """Parquet files per split."""
    seed: Seed = 20130101
    """Seed of the global shuffle before writing."""
    shuffle: bool = True
    """False: rows are written in the order of the query, which is faster; the bytes then differ from one time to the
    next. Use it only for rows already in random order: training shuffles row groups and nearby rows, not a whole
    sorted table."""

    @property
    def id_column(self) -> str:
        """The dataset's column of row ids, whether the query yields it or ``prepare`` makes it."""
        return self.row_id or "row_id"

    @property
    def folds(self) -> FoldSplit | None:
        """The split of a version that holds all folds; None for any other version."""
        return self.split if isinstance(self.split, FoldSplit) and self.split.fold is None else None

    @model_validator(mode="after")
    def _tables_have_names_of_their_own(self) -> Self:
        seen: dict[str, str] = {}
        for name in self.sources:
            other = seen.setdefault(name.lower(), name)
            if other != name:
                raise ValueError(f"sources {other} and {name} have the same name in SQL, which ignores case; rename one")
        return self

    @model_validator(mode="after")
    def _task_fits(self) -> Self:
        text = self.task in TEXT_TASKS
        if text != (self.features.tokens is not None):
            raise ValueError(f"task {self.task if text else ' or '.join(TEXT_TASKS)} and features.tokens go together; give both or neither")
        if text == bool(self.label):
            raise ValueError(f"task {self.task} has no label, found {self.label}; leave prepare.label out" if text else
                             f"task {self.task} needs a label; name its column in prepare.label")
        if text and isinstance(self.split, TimeSplit) and self.split.rolls:
            raise ValueError("the rows of a text cannot fall anew, so its split does not roll; set prepare.split.validation_from and "
                             "test_from in place of validation and test")
        if text and self.folds:
            raise ValueError("the rows of a text are cut after its documents were dealt to splits, so one version cannot hold all folds; "
                             "set prepare.split.fold to prepare one fold at a time")
        if text and self.weight is not None:
            raise ValueError(f"task {self.task} has no weights, found {self.weight}: its rows are cut from joined texts; leave "
                             "prepare.weight out")
        return self

    @model_validator(mode="after")
    def _drift_has_train_rows(self) -> Self:
        limited = [name for name, each in self.expectations.columns.items() if each.max_mean_shift is not None or each.max_psi is not None]
        if limited and self.folds:
            raise ValueError(f"expectations.columns.{limited[0]} limits how far train rows move from version to version, and a version in "
                             "folds has no train split; leave max_mean_shift and max_psi out")
        return self
