"""Petastorm's schema, written without Petastorm: Petastorm reads the same as it would have written, and so do we."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
from petastorm.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from petastorm.etl.legacy import restricted_loads
from petastorm.unischema import Unischema, UnischemaField
from pyspark.sql import types

from sparkring.pipelines.data.dataset.row_schema import DataField, Dtype
from sparkring.pipelines.data.dataset.unischema_pickle import read_unischema
from sparkring.spark_jobs.etl.encoding.petastorm_schema import stored_type
from sparkring.spark_jobs.etl.encoding.schema_pickle import UNISCHEMA_NAMES, pickled_unischema

FIELDS = (
    *(DataField(name=f"of_{dtype}", dtype=dtype) for dtype in get_args(Dtype)),
    DataField(name="maybe", dtype="float32", nullable=True),
    DataField(name="photo", dtype="uint8", shape=(28, 28, 3), codec="png"),
    DataField(name="snap", dtype="uint8", shape=(None, None), codec="jpeg"),
    DataField(name="track", dtype="float64", shape=(None, 3), codec="ndarray"),
    DataField(name="mask", dtype="bool", shape=(70_000,), codec="compressed_ndarray"),
    DataField(name="gr\u00f6\u00dfe", dtype="int32"),
)
CODECS = {"ndarray": NdarrayCodec(), "compressed_ndarray": CompressedNdarrayCodec(), "png": CompressedImageCodec("png"),
          "jpeg": CompressedImageCodec("jpeg")}


def by_petastorm(name: str, fields: tuple[DataField, ...]) -> Unischema:
    return Unischema(name, [UnischemaField(field.name, np.dtype(field.dtype).type, field.shape,
                                           CODECS.get(field.codec) or ScalarCodec(stored_type(field)), field.nullable) for field in fields])


def content(schema: Unischema) -> list[object]:
    """All that a schema holds. Petastorm's own comparison of fields leaves out their codecs."""
    return [schema._name, *((field, type(field), type(field.codec), vars(field.codec), field.codec.spark_dtype())
                            for field in schema.fields.values())]


def test_petastorm_reads_the_schema_that_it_would_have_written() -> None:
    ours, theirs = restricted_loads(pickled_unischema("train", FIELDS)), by_petastorm("train", FIELDS)
    assert content(ours) == content(theirs)
    assert vars(ours) == vars(theirs)
    assert str(ours) == str(theirs)
    assert ours.as_spark_schema() == theirs.as_spark_schema()
    assert ours.photo is ours.fields["photo"]


@pytest.mark.parametrize("change", [{"dtype": "float64"}, {"shape": (3, 2)}, {"codec": "compressed_ndarray"}, {"nullable": True}],
                         ids=lambda change: next(iter(change)))
def test_control_a_schema_that_differs_in_one_thing_is_another(change: dict[str, object]) -> None:
    field = DataField(name="track", dtype="float32", shape=(2, 3), codec="ndarray")
    changed = field.model_copy(update=change)
    assert content(restricted_loads(pickled_unischema("train", [changed]))) != content(by_petastorm("train", (field,)))


def test_our_safe_reader_reads_the_same_as_from_petastorm_s_pickle() -> None:
    read = read_unischema(pickled_unischema("train", FIELDS), origin="x")
    assert read == read_unischema(pickle.dumps(by_petastorm("train", FIELDS)), origin="x")
    assert [(field.name, field.dtype, field.shape, field.codec, field.nullable) for field in read] == [
        (field.name, field.dtype, field.shape, field.codec, field.nullable) for field in FIELDS]


def test_a_field_that_has_the_name_of_one_of_the_schema_s_methods_hides_none() -> None:
    assert {name for name in dir(Unischema) if not name.startswith("_")} == UNISCHEMA_NAMES
    fields = tuple(DataField(name=name, dtype="int64") for name in (*sorted(UNISCHEMA_NAMES), "km"))
    ours = restricted_loads(pickled_unischema("train", fields))
    with pytest.warns(UserWarning, match="conflicts with an existing property"):
        theirs = by_petastorm("train", fields)
    assert vars(ours) == vars(theirs)
    assert ours.as_spark_schema() == types.StructType([types.StructField(field.name, types.LongType(), nullable=False) for field in fields])


def test_a_schema_of_no_fields_and_one_of_a_thousand_are_read() -> None:
    assert vars(restricted_loads(pickled_unischema("train", []))) == vars(by_petastorm("train", ()))
    many = tuple(DataField(name=f"c{number}", dtype="float32") for number in range(1000))
    assert vars(restricted_loads(pickled_unischema("train", many))) == vars(by_petastorm("train", many))
    assert len(read_unischema(pickled_unischema("train", many), origin="x")) == 1000


def test_it_is_written_where_neither_petastorm_nor_pyspark_is_installed() -> None:
    code = ("import sys; sys.modules['petastorm'] = sys.modules['pyspark'] = None\n"
            "from sparkring.pipelines.data.dataset.row_schema import DataField\n"
            "from sparkring.spark_jobs.etl.encoding.schema_pickle import pickled_unischema\n"
            "sys.stdout.buffer.write(pickled_unischema('train', [DataField(name='km', dtype='float32')]))")
    written = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60).stdout
    assert content(restricted_loads(written)) == content(by_petastorm("train", (DataField(name="km", dtype="float32"),)))
