"""Columns kept as they are: what Petastorm's codecs would have written, and what our decoder reads; bad values are named."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from petastorm.codecs import CompressedNdarrayCodec, NdarrayCodec
from petastorm.unischema import UnischemaField

from sparkring.conf.schema import RawConfig
from sparkring.errors import ConfigError
from sparkring.pipelines.data.dataset.row_schema import DataField
from sparkring.pipelines.data.loading.codecs import decode
from sparkring.spark_jobs.etl.encoding.arrays import require_pad, stored_column

RAGGED = [[1, 2], [], [3, 4, 5, 6], [7, 8]]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint16", "int32", "uint32", "int64", "float32", "float64"])
def test_arrays_of_one_shape_are_byte_for_byte_petastorm_s(dtype: str) -> None:
    values = np.arange(12).reshape(2, 2, 3).astype(dtype)
    field = DataField(name="x", dtype=dtype, shape=(2, 3), codec="ndarray")
    column = stored_column(pa.array(values.reshape(2, 6).tolist(), pa.list_(pa.int64())), field)
    unischema = UnischemaField("x", np.dtype(dtype).type, (2, 3), NdarrayCodec(), nullable=False)
    assert column.to_pylist() == [bytes(NdarrayCodec().encode(unischema, value)) for value in values]


@pytest.mark.parametrize("codec", ["ndarray", "compressed_ndarray"])
def test_ragged_arrays_keep_their_order_and_their_lengths(codec: str) -> None:
    field = DataField(name="x", dtype="int16", shape=(None, 2), codec=codec)
    column = stored_column(pa.array(RAGGED, pa.list_(pa.int32())), field)
    reader = NdarrayCodec() if codec == "ndarray" else CompressedNdarrayCodec()
    unischema = UnischemaField("x", np.int16, (None, 2), reader, nullable=False)
    for cell, values in zip(column.to_pylist(), RAGGED, strict=True):
        expected = np.array(values, np.int16).reshape(-1, 2)
        np.testing.assert_array_equal(reader.decode(unischema, cell), expected)
        np.testing.assert_array_equal(decode(cell, field), expected)


def test_a_slice_of_a_batch_is_stored_like_the_whole() -> None:
    field = DataField(name="x", dtype="int16", shape=(None,), codec="ndarray")
    column = pa.array(RAGGED, pa.list_(pa.int32()))
    assert stored_column(column.slice(1, 2), field).to_pylist() == stored_column(column, field).to_pylist()[1:3]
    assert len(stored_column(column.slice(0, 0), field)) == 0


@pytest.mark.parametrize(("dtype", "stored"), [("uint8", pa.int16()), ("uint16", pa.int32()), ("uint32", pa.int64()), ("bool", pa.bool_())])
def test_unsigned_numbers_are_kept_in_the_next_wider_type_of_spark(dtype: str, stored: pa.DataType) -> None:
    field = DataField(name="x", dtype=dtype)
    column = stored_column(pa.array([0, 1, 1], pa.int64()), field)
    assert (column.type, [int(value) for value in column.to_pylist()]) == (stored, [0, 1, 1])


@pytest.mark.parametrize(("values", "field", "message"), [
    pytest.param(pa.array([1, 256]), DataField(name="x", dtype="uint8"), "256", id="too large for its type"),
    pytest.param(pa.array([-1]), DataField(name="x", dtype="uint32"), "-1", id="negative"),
    pytest.param(pa.array([1, None]), DataField(name="x", dtype="int8"), "column x holds 1 nulls", id="null"),
    pytest.param(pa.array([0.0, -1e300]), DataField(name="x", dtype="float32"), r"column x holds -1e\+300, which float32 cannot hold",
                 id="too large for float32"),
    pytest.param(pa.array([[1e39]]), DataField(name="x", dtype="float32", shape=(1,), codec="ndarray"), r"holds 1e\+39, which float32",
                 id="too large for float32 inside"),
    pytest.param(pa.array([0, 1, 7]), DataField(name="x", dtype="bool"), "column x holds 7, which bool cannot hold", id="no truth"),
    pytest.param(pa.array([0.5]), DataField(name="x", dtype="bool"), r"holds 0\.5, which bool", id="half a truth"),
    pytest.param(pa.array([0.5]), DataField(name="x", dtype="int32"), "truncated", id="a fraction"),
    pytest.param(pa.array([Decimal(10) ** 37]), DataField(name="x", dtype="int64"), "out of bounds", id="38 digits"),
    pytest.param(pa.array([math.nan]), DataField(name="x", dtype="int32"), "nan", id="NaN"),
    pytest.param(pa.array([[1, None]]), DataField(name="x", dtype="int8", shape=(2,), codec="ndarray"), "arrays with nulls",
                 id="null inside"),
    pytest.param(pa.array([[1, 2, 3]]), DataField(name="x", dtype="int8", shape=(2,), codec="ndarray"), "an array of 3 numbers",
                 id="too long"),
    pytest.param(pa.array([[1, 2, 3]]), DataField(name="x", dtype="int8", shape=(None, 2), codec="ndarray"), "an array of 3 numbers",
                 id="no whole rows"),
])
def test_what_does_not_fit_is_said(values: pa.Array, field: DataField, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stored_column(values, field)


def test_what_a_type_holds_is_kept_infinities_and_nan_too() -> None:
    floats = stored_column(pa.array([math.inf, -math.inf, math.nan, 3.4e38, 1e-300]), DataField(name="x", dtype="float32")).to_pylist()
    assert (floats[:2], math.isnan(floats[2]), floats[3:]) == ([math.inf, -math.inf], True, [pytest.approx(3.4e38), 0.0])
    assert stored_column(pa.array([1.0, 0.0]), DataField(name="x", dtype="bool")).to_pylist() == [True, False]
    tenths = stored_column(pa.array([Decimal("0.1"), Decimal(7)]), DataField(name="x", dtype="float64"))
    assert tenths.to_pylist() == [0.1, 7.0]


@pytest.mark.parametrize(("dtype", "pad", "fits"), [("uint16", -1, False), ("int8", 200, False), ("int32", 0.5, False), ("bool", 2, False),
                                                    ("uint8", 256, False), ("uint16", 65535, True), ("bool", 1, True),
                                                    ("float32", -0.5, True)])
def test_a_pad_is_a_number_of_the_column_s_type(dtype: str, pad: float, fits: bool) -> None:
    config = RawConfig(column="x", dtype=dtype, shape=(None,), pad=pad, pad_to=3)
    if fits:
        require_pad(config)
        return
    with pytest.raises(ConfigError, match=rf"prepare\.features\.raw: x is padded with {pad:g}, which {dtype} cannot hold"):
        require_pad(config)
