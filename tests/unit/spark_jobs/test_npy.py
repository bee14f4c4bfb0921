"""A column of arrays as Petastorm's NdarrayCodec stores it, made without looking at its rows one by one."""

from __future__ import annotations

import numpy as np
import pytest
from petastorm.codecs import NdarrayCodec
from petastorm.unischema import UnischemaField

from sparkring.spark_jobs.etl.encoding.npy import npy_column


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,)])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "float32", "float64", "bool"])
def test_it_is_byte_for_byte_what_petastorm_writes_and_petastorm_reads_it(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 200, (4, *shape)).astype(dtype)
    field, codec = UnischemaField("x", np.dtype(dtype).type, shape, NdarrayCodec(), nullable=False), NdarrayCodec()
    column = npy_column(values)
    assert column.to_pylist() == [bytes(codec.encode(field, np.asarray(value))) for value in values]
    for value, stored in zip(values, column.to_pylist(), strict=True):
        np.testing.assert_array_equal(codec.decode(field, stored), value)


def test_no_rows_make_an_empty_column() -> None:
    assert len(npy_column(np.empty((0, 5), np.float32))) == 0
