"""The columns of any DataFrame as columns that a dataset can have: names, kinds, and vectors and arrays taken apart. Expressions only.

    of the user                    of the dataset
      unit price   double     ->     c0_unit_price   double
      tags         vector     ->     tags_0, tags_1, tags_2   double
      paid.at      timestamp  ->     c2_paid_at      timestamp

The same expressions serve training and scoring, so a row is encoded alike in both.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from keyword import iskeyword
from typing import Literal

from pydantic import BaseModel, ConfigDict
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    FractionalType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sparkring.errors import SourceError, nearest
from sparkring.models.inputs import CATEGORICAL, IMAGE, NUMERIC, TOKENS
from sparkring.spark_jobs.etl.columns.expressions import finite, named
from sparkring.spark_jobs.scoring.columns import PREDICTION, PROBABILITIES, PROBABILITY, TOP_K

Kind = Literal["number", "boolean", "text", "date", "timestamp", "binary", "array of numbers", "vector", "other"]
"""What a column must still be when a model scores; numbers of any width are one kind."""
RESERVED = ("row_id", "label", "weight", NUMERIC, CATEGORICAL, IMAGE, TOKENS, PREDICTION, PROBABILITY, PROBABILITIES, TOP_K)
"""Names that are taken, in a dataset or by the columns that a prediction adds."""
_KINDS: tuple[tuple[type[DataType] | tuple[type[DataType], ...], Kind], ...] = (
    (NumericType, "number"), (BooleanType, "boolean"), (StringType, "text"), (DateType, "date"),
    ((TimestampType, TimestampNTZType), "timestamp"), (BinaryType, "binary"), (VectorUDT, "vector"))


class InputColumn(BaseModel):
    """A column of the user's that is a feature."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    """Its name in the user's frame."""
    name: str
    """Its name in the dataset; of an array or a vector, the beginning of its elements' names."""
    kind: Kind
    length: int | None = None
    """Elements of an array or a vector."""

    @property
    def elements(self) -> list[str]:
        """The dataset's names of the elements."""
        return [f"{self.name}_{place}" for place in range(self.length or 0)]


def kind_of(found: DataType) -> Kind:
    """The kind of a column of this type."""
    if isinstance(found, ArrayType) and isinstance(found.elementType, NumericType | BooleanType):
        return "array of numbers"
    return next((kind for types, kind in _KINDS if isinstance(found, types)), "other")


def dataset_names(sources: Sequence[str]) -> list[str]:
    """A name for each column that a dataset can have: its own where possible.

    A dataset makes further columns of some (``day_hour``, ``km_is_null``), so a column whose name begins with another's has a number.
    """
    return [name if _can_stay(name, sources) else f"c{place}_{re.sub(r'[^A-Za-z0-9]+', '_', name).strip('_')}".rstrip("_")
            for place, name in enumerate(sources)]


def _can_stay(name: str, sources: Sequence[str]) -> bool:
    lower = name.lower()
    fit = name.isascii() and name.isidentifier() and not name.startswith("_") and not iskeyword(name)
    return (fit and lower not in RESERVED and not re.match(r"c\d+", lower)
            and not any(lower.startswith(f"{other.lower()}_") for other in sources))


def require_columns(frame: DataFrame, names: Collection[str], *, what: str) -> dict[str, str]:
    """Check that a frame has each column, once; like Spark's names, they may differ from the frame's in capitals.

    Args:
        frame: The user's frame.
        names: The columns that are needed.
        what: The frame in words.
    Returns:
        By each name, the frame's own spelling.
    Raises:
        SourceError: it lacks one, or has two that Spark does not tell apart.
    """
    spelled = {}
    for name in names:
        alike = [other for other in frame.columns if other.lower() == name.lower()]
        if not alike:
            raise SourceError(f"{what} has no column {name}{nearest(name, frame.columns) or '; it has ' + ', '.join(frame.columns)}.")
        if len(alike) > 1:
            raise SourceError(f"{what} has {len(alike)} columns {' and '.join(alike)}, which Spark does not tell apart; drop all but one, "
                              "or rename them with toDF.")
        spelled[name] = alike[0]
    return spelled


def require_kinds(schema: StructType, columns: Sequence[InputColumn]) -> None:
    """Check that the features of rows to score are what they were in training.

    Raises:
        SourceError: one is of another kind.
    """
    for column in columns:
        found = kind_of(schema[column.source].dataType)
        if found != column.kind:
            was = f"{'an' if column.kind.startswith('a') else 'a'} {column.kind}"
            raise SourceError(f"column {column.source} is {schema[column.source].dataType.simpleString()} now, and it was {was} "
                              "when the model was fitted; cast it, or fit again.")


def as_feature(source: str, found: DataType) -> Column:
    """A column under its user's name, with vectors as arrays."""
    if not isinstance(found, VectorUDT):
        return named(source)
    return sf.when(named(source).isNotNull(), vector_to_array(named(source)))  # it refuses nulls


def as_label(source: str, found: DataType, *, classes: bool) -> Column:
    """The label: whole numbers if it says the class, null where it is not a finite number.

    Args:
        source: The label's column.
        found: Its type.
        classes: Whether its values are classes.
    """
    value = finite(named(source)) if isinstance(found, FractionalType) else named(source)
    return value.cast("bigint") if classes and isinstance(found, NumericType) else value


def feature_columns(schema: StructType, columns: Sequence[InputColumn]) -> Iterator[Column]:
    """The dataset's feature columns, made of a frame of the user's.

    Args:
        schema: Of the frame.
        columns: Those that are features.
    """
    for column in columns:
        value = as_feature(column.source, schema[column.source].dataType)
        if column.length is None:
            yield value.alias(column.name)
        else:
            yield from _elements(value, column)


def _elements(array: Column, column: InputColumn) -> Iterator[Column]:
    """Each element as a double; a row whose array has another length fails with a sentence."""
    size = sf.size(array)
    said = sf.concat(sf.lit(f"column {column.source} has arrays of {column.length} elements in training, and one of "), size.cast("string"),
                     sf.lit(" here; give them one length."))
    checked = sf.when(array.isNull() | (size == column.length), array).otherwise(sf.raise_error(said))
    for place, name in enumerate(column.elements):
        yield sf.get(checked if place == 0 else array, sf.lit(place)).cast("double").alias(name)
