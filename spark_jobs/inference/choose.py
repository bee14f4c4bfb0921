"""What to make of each column, and of the label, with the reason in words. Pure: facts in, plain data out.

    column                           used as
    boolean, number                  number
    date, timestamp                  its parts: days, day of the week, day of the year, hour
    text of few values               category
    text of many values              hashed: an id by its hash
    binary                           image
    unique a row                     left out: it names the row and says nothing about the next one
    one value, no value              left out
    array of numbers, of one length  its elements, where the caller takes them apart
    free text, maps, structs         left out, with advice
    known only with the label        left out: it would leak the label

The rules are simple on purpose: each can be told in a sentence, and whoever knows better changes the line in the YAML.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pyspark.sql.types import ArrayType, BinaryType, BooleanType, DateType, IntegralType, NumericType, StringType

from sparkring.conf.schema import Task
from sparkring.errors import SourceError
from sparkring.spark_jobs.etl.columns.expressions import TEMPORAL_TYPES
from sparkring.spark_jobs.inference.facts import ColumnFacts, TableFacts

Use = Literal["numeric", "moments", "categorical", "hashed", "image", "elements", "left out"]

ROWS_A_CATEGORY = 20
"""A text with fewer rows a value, on average, is hashed: most of its values would share the id of the unknown."""
MOST_CATEGORIES = 1_000
FREE_TEXT = 40
"""Mean characters from which a text of very many values is taken for free text."""
MOST_CLASSES = 100
"""A whole-number label with more values is a number to predict, not a class."""
NULLS_WORTH_A_COLUMN = 0.05
"""From this share of nulls on, a number gets a column that marks them."""
MOST_ELEMENTS = 4_096
"""An array's elements are columns of the dataset."""
UNIQUE = 0.9
"""From this share of rows with a value of their own on, a column names rows; the count is estimated."""
FEWEST_PAIRS = 50
"""Rows a value from which on "each value has one label" is no chance."""
COPY = 0.9999
"""Correlation from which on a number is taken for the label in other units."""
TWO_CLASSES = ((0, 1, 2), (False, True, 2))
"""Smallest value, largest value and number of values of a label of two classes."""


@dataclass(frozen=True)
class Choice:
    """What becomes of one column."""

    column: str
    use: Use
    why: str
    """One clause, e.g. ``text of 12 values``."""
    leaks: bool = False
    """Left out because it would tell the label."""
    null_share: float = 0.0
    is_date: bool = False
    """Of moments: a date, which has no hour."""
    distinct: int = 0
    length: int = 0
    """Of elements: their number."""


@dataclass(frozen=True)
class Choices:
    """What becomes of a table."""

    label: str
    task: Task
    label_why: str
    columns: tuple[Choice, ...]

    def of(self, use: Use) -> list[Choice]:
        """The columns with this use, in the table's order."""
        return [each for each in self.columns if each.use == use]


def choose(facts: TableFacts, *, named: bool = False, arrays: bool = False) -> Choices:
    """Choose the use of every column and the task.

    Args:
        facts: The table's figures.
        named: Whether a person named the columns: then none is left out for what it says about the label or the row.
        arrays: Whether the caller takes arrays of numbers apart.
    Raises:
        SourceError: the label has no value, one value, or a type that cannot be predicted; or no column is left as a feature.
    """
    task, why = _task(facts.label)
    columns = tuple(_choice(column, facts.label, named=named, arrays=arrays) for column in facts.columns)
    if all(each.use == "left out" for each in columns):
        found = ", ".join(f"{each.column} ({each.why})" for each in columns) or "no other column"
        raise SourceError(f"no column is left to learn {facts.label.name} from: {found}; give the table columns that are known before the "
                          "label is, or name features in a config.")
    return Choices(facts.label.name, task, why, columns)


def _task(label: ColumnFacts) -> tuple[Task, str]:
    if not label.rows:
        raise SourceError("the table has no rows; give one that has.")
    if not label.present or label.distinct <= 1:
        found = f"has the value {label.low} in all {label.present:,} rows" if label.present else f"is null in all {label.rows:,} rows"
        raise SourceError(f"the label {label.name} {found}; there is nothing to learn, so name another column.")
    left_out = f"; {label.nulls:,} rows without one are left out" if label.nulls else ""
    if isinstance(label.type, BooleanType) or (label.whole and (label.low, label.high) == (0, 1)):
        return "binary", f"0 or 1{left_out}"
    if isinstance(label.type, StringType):
        if label.distinct > MOST_CLASSES:
            raise SourceError(f"the label {label.name} is a text of about {label.distinct:,} values, and at most {MOST_CLASSES} are taken "
                              "for classes; name another column, or group its values in a query.")
        return "multiclass", f"a text of {label.distinct} values{left_out}"
    if label.whole and label.distinct <= MOST_CLASSES and isinstance(label.type, IntegralType):
        return "multiclass", f"whole numbers of {label.distinct} values{left_out}"
    if isinstance(label.type, NumericType):
        return "regression", f"numbers from {label.low} to {label.high}{left_out}"
    raise SourceError(f"the label {label.name} is of type {label.type.simpleString()}, which cannot be predicted; make a number, a boolean "
                      "or a text of it in a query.")


def _choice(column: ColumnFacts, label: ColumnFacts, *, named: bool, arrays: bool) -> Choice:
    leak = None if named else next(_leaks(column, label), None)
    if leak:
        return Choice(column.name, "left out", leak, leaks=True)
    left_out = None if named and column.present else next(_says_nothing(column), None)
    if left_out:
        return Choice(column.name, "left out", left_out)
    if arrays and isinstance(column.type, ArrayType) and isinstance(column.type.elementType, NumericType | BooleanType):
        return _elements(column)
    return _use(column)


def _leaks(column: ColumnFacts, label: ColumnFacts) -> Iterator[str]:
    """Reasons to take the column for a copy or a consequence of the label."""
    if column.present and column.equal_to_label == min(column.present, label.present):
        yield f"it equals {label.name}"
    elif column.apart and (label.low, label.high, label.distinct) in TWO_CLASSES and column.present >= FEWEST_PAIRS:
        yield f"all its values where {label.name} is 1 lie on one side of those where it is 0"
    elif abs(column.correlation) >= COPY and column.present >= FEWEST_PAIRS:
        yield f"its correlation with {label.name} is {column.correlation:.4f}: nearly a copy in other units"
    elif column.labels_seen > 1 and column.labels_by_value <= column.distinct and column.present >= FEWEST_PAIRS * column.distinct:
        yield f"each of its {column.distinct} values comes with one value of {label.name}"
    elif column.labels_seen == column.labels_at_null == 1 and min(column.present, column.nulls) >= FEWEST_PAIRS:
        yield f"it has a value for one value of {label.name} and none for the other"
    if label.nulls and column.nulls_without_label == label.nulls == column.nulls:
        yield f"it is null exactly where {label.name} is, so it becomes known with it"


def _says_nothing(column: ColumnFacts) -> Iterator[str]:
    if not column.present:
        yield "it is null in every row"
    if isinstance(column.type, StringType | IntegralType) and column.distinct >= UNIQUE * column.present > UNIQUE * ROWS_A_CATEGORY:
        yield "nearly every row has a value of its own, so it names the row"
    if column.distinct == 1 and not column.nulls:
        yield f"it is {column.low} in every row"


def _use(column: ColumnFacts) -> Choice:
    kind, nulls = column.type, column.nulls / column.rows
    said = f", null in {nulls:.0%}" if nulls else ""
    if isinstance(kind, NumericType | BooleanType):
        return Choice(column.name, "numeric", f"{kind.simpleString()} from {column.low} to {column.high}{said}", null_share=nulls)
    if isinstance(kind, TEMPORAL_TYPES):
        return Choice(column.name, "moments", f"{kind.simpleString()} from {column.low} to {column.high}{said}",
                      is_date=isinstance(kind, DateType))
    if isinstance(kind, StringType):
        return _text(column, said)
    if isinstance(kind, BinaryType):
        return Choice(column.name, "image", f"binary, {column.mean_length:,.0f} bytes on average: taken for image files")
    advice = "take elements of it in a query" if kind.typeName() == "array" else "take fields of it in a query"
    return Choice(column.name, "left out", f"{kind.typeName()}: {advice}")


def _elements(column: ColumnFacts) -> Choice:
    shortest, longest = column.lengths
    if shortest != longest or not 0 < longest <= MOST_ELEMENTS:
        return Choice(column.name, "left out", f"arrays of {shortest:,} to {longest:,} elements: give all rows one length, from 1 to "
                                               f"{MOST_ELEMENTS:,}")
    return Choice(column.name, "elements", f"arrays of {longest:,} numbers each", length=longest)


def _text(column: ColumnFacts, said: str) -> Choice:
    few = column.distinct <= min(MOST_CATEGORIES, max(2, column.present / ROWS_A_CATEGORY))
    if few:
        return Choice(column.name, "categorical", f"text of {column.distinct:,} values{said}", distinct=column.distinct)
    if column.mean_length >= FREE_TEXT:
        return Choice(column.name, "left out", f"free text of {column.mean_length:.0f} characters: make features of it in a query, or "
                                               "train a text model on it (task next_token or masked_tokens)")
    return Choice(column.name, "hashed", f"text of about {column.distinct:,} values{said}", distinct=column.distinct)


def leaks(columns: Sequence[Choice]) -> list[Choice]:
    """The columns that were left out because they would tell the label."""
    return [each for each in columns if each.leaks]
