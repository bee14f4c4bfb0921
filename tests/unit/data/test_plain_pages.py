"""Values read past Arrow's decoder are Arrow's; what is not plain, or damaged, is left to Arrow."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from harness.loader_files import commit, files_of
from sparkring.pipelines.data.dataset.row_schema import DataField, TensorSpec
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading import plain_pages, reader
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.page_headers import read_struct
from sparkring.pipelines.data.loading.plain_pages import PlainPages
from sparkring.pipelines.data.loading.reader import SplitReader
from tests.support import seams

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


class _CountingFile:
    """A file whose reads are listed."""

    def __init__(self, file: Path) -> None:
        self._file, self._at = pa.OSFile(str(file)), 0
        self.reads: list[tuple[int, int]] = []

    def seek(self, offset: int) -> None:
        self._at = offset
        self._file.seek(offset)

    def read_buffer(self, size: int) -> pa.Buffer:
        self.reads.append((self._at, size))
        return self._file.read_buffer(size)


def test_neighbours_that_are_expected_are_read_at_once_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, parquet = _opened(tmp_path / "f.parquet", _columns(), compression="none")
    source: Any = _CountingFile(tmp_path / "f.parquet")
    plain, names = PlainPages(source, parquet), parquet.schema_arrow.names

    def reads(*expected: str) -> int:
        plain.expect(0, expected)
        source.reads.clear()
        for name in expected or names:
            found = plain.values(0, name, start=0, stop=ROWS)
            assert found is not None
            np.testing.assert_array_equal(found, parquet.read_row_group(0)[name].to_numpy())
        return len(source.reads)

    assert reads() == 4  # the control
    assert reads(*names) == 1
    assert reads("float32", "float64", "int64") == 2
    assert sum(size for _, size in source.reads) < (4 + 8 + 8 + 1) * ROWS  # none of int32, which lies between
    monkeypatch.setattr(seams.CHUNK_READS_AT_ONCE_BYTES, 13 * ROWS)
    assert reads(*names) == 2  # 4 + 8, then 4 + 8 bytes a row


def test_a_file_that_ends_early_gives_no_values(tmp_path: Path) -> None:
    _, parquet = _opened(tmp_path / "f.parquet", _columns(), compression="none")
    last = parquet.metadata.row_group(0).column(3)
    os.truncate(tmp_path / "f.parquet", last.data_page_offset + 1000)
    plain = PlainPages(pa.OSFile(str(tmp_path / "f.parquet")), parquet)
    plain.expect(0, parquet.schema_arrow.names)
    assert plain.values(0, "int32", start=0, stop=ROWS) is not None
    assert plain.values(0, "int64", start=0, stop=ROWS) is None


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
    for kind, stored in (("uint32", "int32"), ("duration[us]", "int64"), ("time32[ms]", "int32")):
        plain, _ = _opened(tmp_path / "f.parquet", pa.table({"x": pa.array(range(ROWS), stored).cast(kind)}))
        assert not any(plain.may_hold(0, "x", dtype) for dtype in ("int32", "int64")), kind


def test_a_struct_s_leaf_is_not_the_column_of_the_same_path(tmp_path: Path) -> None:
    numbers = np.arange(ROWS)
    inner = pa.StructArray.from_arrays([pa.array(-numbers)], names=["b"])
    plain, _ = _opened(tmp_path / "f.parquet", pa.table({"a.b": pa.array(numbers), "a": inner, "c": pa.array(numbers)}))
    assert plain.may_hold(0, "c", "int64")  # the control
    assert not plain.may_hold(0, "a.b", "int64")
    assert not plain.may_hold(0, "a", "int64")


@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize("page_version", ["1.0", "2.0"])
@pytest.mark.parametrize("nullable", [False, True], ids=["required", "optional"])
def test_a_damaged_header_gives_the_values_or_none(tmp_path: Path, compression: str, page_version: str, nullable: bool) -> None:
    rows = plain_pages.FEWEST_ROWS
    table = _columns(rows, nullable=nullable).select(["int32"])
    _, parquet = _opened(tmp_path / "f.parquet", table, compression=compression, data_page_version=page_version)
    content, begin = bytearray((tmp_path / "f.parquet").read_bytes()), parquet.metadata.row_group(0).column(0).data_page_offset
    length = read_struct(memoryview(content)[begin:])[1]
    none = 0
    for place, value in product(range(begin, begin + length), (0, 1, 3, 0x10, 0x11, 0x15, 0x18, 0x1C, 0x2C, 0x51, 0x80, 0xFF)):
        damaged = bytearray(content)
        damaged[place] = value
        source = pa.BufferReader(damaged)
        found = PlainPages(source, pq.ParquetFile(source)).values(0, "int32", start=0, stop=rows)
        none += found is None
        if found is not None:
            np.testing.assert_array_equal(found, table["int32"].to_numpy(), err_msg=f"{place - begin}: {value:#x}")
    assert none > length


@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize("page_version", ["1.0", "2.0"])
@pytest.mark.parametrize("nullable", [False, True], ids=["required", "optional"])
def test_a_damaged_page_that_is_skipped_moves_no_row(tmp_path: Path, compression: str, page_version: str, nullable: bool) -> None:
    """Every bit of its header turned over: a page that lies before the rows that are read counts for where they are."""
    rows, size = 4 * plain_pages.FEWEST_ROWS, 5 * plain_pages.FEWEST_ROWS
    table = _columns(rows, nullable=nullable).select(["int32"])
    _, parquet = _opened(tmp_path / "f.parquet", table, compression=compression, data_page_version=page_version, data_page_size=size,
                         row_group_size=rows)
    content, begin = bytearray((tmp_path / "f.parquet").read_bytes()), parquet.metadata.row_group(0).column(0).data_page_offset
    length, (start, stop) = read_struct(memoryview(content)[begin:])[1], (rows // 2, rows // 2 + 5)
    expected, none = table["int32"].to_numpy()[start:stop], 0
    for place, bit in product(range(begin, begin + length), range(8)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << bit
        source = pa.BufferReader(damaged)
        found = PlainPages(source, pq.ParquetFile(source)).values(0, "int32", start=start, stop=stop)
        none += found is None
        if found is not None:
            np.testing.assert_array_equal(found, expected, err_msg=f"byte {place - begin}, bit {bit}")
    assert none > length


@pytest.mark.parametrize("page_version", ["1.0", "2.0"])
def test_a_header_that_lacks_a_field_is_left_to_arrow(tmp_path: Path, page_version: str) -> None:
    """Of a page that others follow, where a struct that ends early is not seen by where its chunk ends."""
    rows = 4 * plain_pages.FEWEST_ROWS
    table = _columns(rows, nullable=False).select(["int32"])
    _, parquet = _opened(tmp_path / "f.parquet", table, compression="none", data_page_version=page_version,
                         data_page_size=4 * plain_pages.FEWEST_ROWS, write_batch_size=plain_pages.FEWEST_ROWS)
    content, begin = bytearray((tmp_path / "f.parquet").read_bytes()), parquet.metadata.row_group(0).column(0).data_page_offset
    length = read_struct(memoryview(content)[begin:])[1]
    wrong = 0
    for place in range(begin, begin + length):
        damaged = bytearray(content)
        damaged[place] = 0  # ends a struct
        source = pa.BufferReader(damaged)
        parquet = pq.ParquetFile(source)
        found = PlainPages(source, parquet).values(0, "int32", start=0, stop=100)
        if found is not None:
            try:
                as_arrow_reads_it = parquet.read()["int32"].to_numpy()[:100]
            except OSError:
                wrong += 1
            else:
                np.testing.assert_array_equal(found, as_arrow_reads_it)
    assert wrong == 0


def test_a_footer_that_gives_a_column_two_types_is_left_to_arrow(tmp_path: Path) -> None:
    _, parquet = _opened(tmp_path / "f.parquet", _columns().select(["int32"]))
    content = bytearray((tmp_path / "f.parquet").read_bytes())
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    found = set()
    for place in range(begin, len(content) - 8):
        # The first field of a struct, of 32 bits: INT32 in zigzag; 8 is FLOAT. Others are left as they are: of a wrong number of levels
        # Arrow 26 dies.
        if content[place - 1:place + 1] == b"\x15\x02":
            damaged = bytearray(content)
            damaged[place] = 8
            source = pa.BufferReader(damaged)
            try:
                parquet = pq.ParquetFile(source)
                if parquet.metadata.row_group(0).column(0).physical_type == parquet.schema.column(0).physical_type:
                    continue
            except (OSError, ValueError):
                continue
            found.add(place)
            assert not PlainPages(source, parquet).may_hold(0, "int32", "int32")
    assert found


def test_nulls_that_the_header_denies_are_left_to_arrow(tmp_path: Path) -> None:
    """One null, and a filler in its place: as many bytes of values as there are rows."""
    for page_version in ("1.0", "2.0"):
        plain, parquet = _opened(tmp_path / "f.parquet", _columns(plain_pages.FEWEST_ROWS).select(["int64"]), compression="none",
                                 data_page_version=page_version)
        content = bytearray((tmp_path / "f.parquet").read_bytes())
        levels = plain_pages._no_null(parquet.metadata.num_rows)
        assert content.count(levels) == 1
        place = content.index(levels)
        content[place + len(levels) - 1] = 0  # all of them null, and the values still there
        source = pa.BufferReader(content)
        damaged = pq.ParquetFile(source)
        assert damaged.read().column(0).null_count > 0  # the control: Arrow heeds the levels
        assert PlainPages(source, damaged).values(0, "int64", start=0, stop=9) is None
        assert plain.values(0, "int64", start=0, stop=9) is not None


@pytest.mark.parametrize("header", [b"\x15" + b"\xff" * 100_000, b"\x1c" * 100_000, b"\x18\xff\xff\xff\xff\x0f", b""],
                         ids=["an endless integer", "structs within structs", "text beyond the end", "nothing"])
def test_hostile_headers_end_at_once(header: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        plain_pages._Page.read(memoryview(header), 0, itemsize=4, nullable=False, compressed=False)


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

    monkeypatch.setattr(seams.READER_READ_ROWS, noted)
    past_arrow = batches()
    assert set(by_arrow) == {"small"}
    monkeypatch.setattr(seams.PLAIN_PAGES_FEWEST_ROWS, 1 << 60)
    assert torch.equal(torch.cat(past_arrow), torch.cat(batches()))
    assert set(by_arrow) == {"float32", "int64", "small"}
