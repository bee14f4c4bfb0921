"""Values read past Arrow's decoder are Arrow's; what is not plain, or damaged, is left to Arrow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.loader_data import commit, files_of
from sparkring.pipelines.data import plain_pages, reader
from sparkring.pipelines.data.loader import Loader, LoaderConfig
from sparkring.pipelines.data.manifest import DataField, Dataset, TensorSpec
from sparkring.pipelines.data.plain_pages import PlainPages
from sparkring.pipelines.data.reader import SplitReader

ROWS = 40_000


def _columns(rows: int = ROWS, *, nullable: bool = True) -> pa.Table:
    generator = np.random.default_rng(7)
    columns = {"float32": generator.standard_normal(rows).astype(np.float32), "float64": generator.standard_normal(rows).round(1),
               "int32": generator.integers(-9, 9, rows, dtype=np.int32), "int64": generator.integers(-(1 << 60), 1 << 60, rows)}
    return pa.table(columns, schema=pa.schema([pa.field(name, pa.from_numpy_dtype(name), nullable) for name in columns]))


def _opened(file: Path, table: pa.Table, **options: object) -> tuple[PlainPages, pq.ParquetFile]:
    pq.write_table(table, file, **({"use_dictionary": False, "row_group_size": ROWS} | options))
    source = pa.OSFile(str(file))
    parquet = pq.ParquetFile(source)
    return PlainPages(source, parquet), parquet


@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize("page_version", ["1.0", "2.0"])
@pytest.mark.parametrize("nullable", [False, True], ids=["required", "optional"])
def test_values_are_those_of_arrow(tmp_path: Path, compression: str, page_version: str, nullable: bool) -> None:
    plain, parquet = _opened(tmp_path / "f.parquet", _columns(2 * ROWS - 5, nullable=nullable), compression=compression,
                             data_page_version=page_version, data_page_size=160_000)  # several pages of 8-byte values
    for group in range(parquet.num_row_groups):
        for name, expected in zip(parquet.schema_arrow.names, parquet.read_row_group(group).columns, strict=True):
            assert plain.may_hold(group, name, name)
            for start, stop in ((0, len(expected)), (1, 2), (20_000, len(expected)), (9_999, 31_007)):
                found = plain.values(group, name, start=start, stop=stop)
                assert found is not None, (name, start, stop)
                assert found.dtype == name
                np.testing.assert_array_equal(found, expected.to_numpy()[start:stop])


def _with_nulls(table: pa.Table) -> pa.Table:
    mask = np.zeros(len(table), dtype=bool)
    mask[17] = True
    return pa.table({name: pa.array(column.to_numpy(), mask=mask) for name, column in zip(table.column_names, table.columns, strict=True)})


@pytest.mark.parametrize("page_version", ["1.0", "2.0"])
@pytest.mark.parametrize(("change", "options"), [
    pytest.param(_with_nulls, {}, id="nulls"),
    pytest.param(lambda table: table, {"use_dictionary": True}, id="a dictionary"),
    pytest.param(lambda table: table, {"compression": "zstd"}, id="another compression"),
    pytest.param(lambda table: table, {"column_encoding": dict.fromkeys(("float32", "float64"), "BYTE_STREAM_SPLIT")
                                       | dict.fromkeys(("int32", "int64"), "DELTA_BINARY_PACKED")}, id="other encodings"),
    pytest.param(lambda table: table.slice(0, 1000), {}, id="few rows"),
    pytest.param(lambda table: pa.table(dict.fromkeys(table.column_names, pa.array([[1.0]] * ROWS))), {}, id="lists"),
    pytest.param(lambda table: pa.table(dict.fromkeys(table.column_names, pa.array(range(ROWS), pa.timestamp("us")))), {}, id="timestamps"),
])
def test_what_is_not_plain_is_left_to_arrow(tmp_path: Path, page_version: str, change: Callable[[pa.Table], pa.Table],
                                            options: dict[str, object]) -> None:
    plain, parquet = _opened(tmp_path / "f.parquet", change(_columns()), data_page_version=page_version, **options)
    rows = parquet.metadata.num_rows
    for name in _columns(1).column_names:
        assert not plain.may_hold(0, name, name) or plain.values(0, name, start=0, stop=rows) is None


def test_a_column_of_another_type_or_none_of_that_name_is_not_held(tmp_path: Path) -> None:
    plain, _ = _opened(tmp_path / "f.parquet", _columns())
    assert plain.may_hold(0, "int32", "int32")  # the control
    assert not plain.may_hold(0, "int32", "uint32")
    assert not plain.may_hold(0, "int32", "int64")
    assert not plain.may_hold(0, "float32", "float64")
    assert not plain.may_hold(0, "gone", "float64")


@pytest.mark.parametrize("compression", ["none", "snappy"])
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_headers_give_the_right_number_of_values_or_none(tmp_path_factory: pytest.TempPathFactory, compression: str,
                                                                 data: st.DataObject) -> None:
    file = tmp_path_factory.mktemp("damaged", numbered=True) / "f.parquet"
    _, parquet = _opened(file, _columns().select(["float32"]), compression=compression)
    chunk = parquet.metadata.row_group(0).column(0)
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        content[chunk.data_page_offset + data.draw(st.integers(0, 80))] = data.draw(st.integers(0, 255))
    file.write_bytes(content)
    source = pa.OSFile(str(file))
    found = PlainPages(source, pq.ParquetFile(source)).values(0, "float32", start=0, stop=ROWS)
    assert found is None or found.shape == (ROWS,)


@pytest.mark.parametrize("header", [b"\x15" + b"\xff" * 100_000, b"\x1c" * 100_000, b"\x18\xff\xff\xff\xff\x0f", b""],
                         ids=["an endless integer", "structs within structs", "text beyond the end", "nothing"])
def test_hostile_headers_end_at_once(header: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        plain_pages._Page.read(memoryview(header), 0, levels=False, compressed=False)


def test_a_reader_gives_the_same_rows_past_arrow_and_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(count: int) -> pa.Table:
        return _columns(count).select(["float32", "int64"]).append_column("small", pa.array(np.arange(count) % 100, pa.int16()))

    fields = tuple(DataField(name=name, dtype=dtype) for name, dtype in (("float32", "float32"), ("int64", "int64"), ("small", "int16")))
    commit(tmp_path, fields, TensorSpec(name="x", dtype="float64", fields=tuple(field.name for field in fields)),
           files_of(tmp_path, rows, files=2, groups=2, rows=ROWS))
    by_arrow: list[str] = []
    original = reader.read_rows

    def noted(parquet: pq.ParquetFile, index: int, start: int, stop: int, columns: list[str]) -> pa.Table:
        by_arrow.extend(columns)
        return original(parquet, index, start, stop, columns)

    def batches() -> list[torch.Tensor]:
        by_arrow.clear()
        dataset = Dataset(str(tmp_path))
        config = LoaderConfig(batch_rows=1000, seed=5, lanes=3)
        loader = Loader(SplitReader(dataset.store, dataset.manifest(), "train"), config, rank=0, num_ranks=1)
        return [batch.tensors["x"] for batch in loader.epoch(0)]

    monkeypatch.setattr(reader, "read_rows", noted)
    past_arrow = batches()
    assert set(by_arrow) == {"small"}
    monkeypatch.setattr(plain_pages, "FEWEST_ROWS", 1 << 60)
    assert torch.equal(torch.cat(past_arrow), torch.cat(batches()))
    assert set(by_arrow) == {"float32", "int64", "small"}
