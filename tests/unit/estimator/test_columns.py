"""Columns of any frame as a dataset's: their names and kinds."""

from __future__ import annotations

import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from sparkring.estimator.columns import dataset_names, kind_of


@pytest.mark.parametrize(("sources", "names"), [
    pytest.param(["km", "day_of_week"], ["km", "day_of_week"], id="plain names stay"),
    pytest.param(["unit price", "paid.at", "a`b"], ["c0_unit_price", "c1_paid_at", "c2_a_b"], id="odd ones have a number"),
    pytest.param(["größe", "日"], ["c0_gr_e", "c1"], id="other alphabets have a number"),
    pytest.param(["label", "row_id", "class", "_x"], ["c0_label", "c1_row_id", "c2_class", "c3_x"], id="taken ones have a number"),
    pytest.param(["day", "day_hour"], ["day", "c1_day_hour"], id="what a column made of another could be called"),
    pytest.param(["prediction", "Probability", "probabilities", "top_k"],
                 ["c0_prediction", "c1_Probability", "c2_probabilities", "c3_top_k"], id="those of columns that a prediction adds"),
    pytest.param(["c1", "x y"], ["c0_c1", "c1_x_y"], id="what looks like a number's"),
])
def test_a_column_keeps_its_name_where_a_dataset_can_have_it(sources: list[str], names: list[str]) -> None:
    assert dataset_names(sources) == names
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("found", "kind"), [
    (LongType(), "number"), (DecimalType(9, 2), "number"), (BooleanType(), "boolean"), (StringType(), "text"), (DateType(), "date"),
    (TimestampType(), "timestamp"), (TimestampNTZType(), "timestamp"), (BinaryType(), "binary"), (VectorUDT(), "vector"),
    (ArrayType(DoubleType()), "array of numbers"), (ArrayType(StringType()), "other"), (MapType(StringType(), LongType()), "other")])
def test_a_column_s_kind_is_read_off_its_type(found: DataType, kind: str) -> None:
    assert kind_of(found) == kind
