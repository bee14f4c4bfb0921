"""A bit that flips in a data file is refused by name or changes nothing: no value is read from a page that does not match its checksum."""

from __future__ import annotations

import hashlib
import random
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.parquet_files import pages, with_checksums, write_parquet
from sparkring.errors import DatasetError
from sparkring.pipelines.data.dataset.integrity import check_footers
from sparkring.pipelines.data.dataset.manifest import DataFile, Manifest, Split
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.data.dataset.row_schema import DataField, TensorSpec
from sparkring.pipelines.data.loading.page_checksums import VerifiedFile, read_verified, verify_file
from sparkring.pipelines.data.loading.plain_pages import FEWEST_ROWS
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.etl.writing.add_checksums import CODEC, COLUMN, COLUMNS, ROW_GROUPS, has_checksums
from sparkring.spark_jobs.etl.writing.thrift_compact import read_struct, structs
from tests.support import seams

ROWS = FEWEST_ROWS + 1000
NAME = "part-0.parquet"
FLIPS = 60
ARROW_VERIFIES = (15, 0)
LAST_CODEC = 7
"""LZ4_RAW."""
KINDS = {"float32": "float32", "float64": "float64", "int32": "int32", "int64": "int64", "late": "int8"}
PLAIN = {"use_dictionary": False, "data_page_version": "2.0"}
WRITERS = [
    pytest.param({**PLAIN, "compression": "snappy"}, id="as prepare writes"),
    pytest.param({**PLAIN, "compression": "none"}, id="uncompressed"),
    pytest.param({"data_page_version": "1.0", "compression": "zstd", "data_page_size": 4096}, id="dictionaries and small pages"),
]


def _table() -> pa.Table:
    generator = np.random.default_rng(7)
    columns = {"float32": generator.standard_normal(ROWS).astype(np.float32), "float64": generator.standard_normal(ROWS).round(1),
               "int32": generator.integers(-9, 9, ROWS, dtype=np.int32), "int64": generator.integers(-(1 << 60), 1 << 60, ROWS),
               "late": generator.integers(0, 2, ROWS, dtype=np.int8)}
    return pa.table(columns, schema=pa.schema([pa.field(name, pa.from_numpy_dtype(kind), nullable=False) for name, kind in KINDS.items()]))


def _manifest(file: Path) -> Manifest:
    footer = pq.ParquetFile(file).metadata
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    described = DataFile(
        path=NAME, bytes=file.stat().st_size, sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        row_groups=[group.num_rows for group in groups],
        row_group_bytes=[sum(group.column(column).total_compressed_size for column in range(group.num_columns)) for group in groups])
    return Manifest(
        version=1, parent=None, data_id="d1", content_id="", recipe_id="", created_at="", code_version="", row_id="int64", label="late",
        fields=tuple(DataField(name=name, dtype=kind) for name, kind in KINDS.items()),
        tensors=tuple(TensorSpec(name=name, dtype=kind, fields=(name,)) for name, kind in KINDS.items()),
        splits={"train": Split(files=(described,), rows=ROWS, rows_digest="0" * 16)}, recipe={}, source={},
        preprocessing=Preprocessing(numeric=(), categorical=(), train_rows=0))


def _read(folder: Path, manifest: Manifest) -> dict[str, bytes]:
    """As a run does: footers are compared with the manifest, then rows are read."""
    store = open_store(str(folder))
    mismatches = check_footers(store, manifest, manifest.files)
    if mismatches:
        raise DatasetError(str(mismatches[0]))
    reader = SplitReader(store, manifest, "train")
    found: dict[str, list[bytes]] = {name: [] for name in KINDS}
    for group, rows in enumerate(manifest.files[0].row_groups):
        for name, values in reader.read(group, 0, rows, np.arange(rows)).items():
            found[name].append(np.asarray(values.take(0, rows)).tobytes())
    return {name: b"".join(parts) for name, parts in found.items()}


def _outcomes(folder: Path, manifest: Manifest, whole: bytes, expected: dict[str, bytes], *, places: list[int]) -> Counter[str]:
    chance, outcomes = random.Random(5), Counter[str]()
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << chance.randrange(8)
        if _has_unknown_codec(bytes(flipped)):
            outcomes["ends the process"] += 1
            continue
        (folder / NAME).write_bytes(flipped)
        try:
            outcomes["equal" if _read(folder, manifest) == expected else "wrong"] += 1
        except DatasetError:
            outcomes["refused"] += 1
    return outcomes


def _has_unknown_codec(data: bytes) -> bool:
    """Whether the footer names a codec that Arrow does not know: from 26 on, it ends the process when it is asked for its name."""
    try:
        footer, _ = read_struct(memoryview(data)[-8 - int.from_bytes(data[-8:-4], "little"):])
        return any(not 0 <= chunk[COLUMN][1][CODEC][1] <= LAST_CODEC for group in structs(footer[ROW_GROUPS])
                   for chunk in structs(group[COLUMNS]))
    except (LookupError, TypeError, ValueError, AttributeError):
        return False  # no footer that could be read


@pytest.mark.parametrize("options", WRITERS)
def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object]) -> None:
    write_parquet(_table(), tmp_path / NAME, row_group_size=ROWS, **options)
    manifest, whole = _manifest(tmp_path / NAME), (tmp_path / NAME).read_bytes()
    expected = _read(tmp_path, manifest)
    chance = random.Random(3)
    anywhere = [chance.randrange(len(whole)) for _ in range(FLIPS)]
    headers = [place for header, body, _ in pages(whole)[:8] for place in range(body - 40, body)]
    footer = range(len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"), len(whole))
    found = _outcomes(tmp_path, manifest, whole, expected, places=anywhere)
    delicate = _outcomes(tmp_path, manifest, whole, expected, places=[*chance.sample(headers, FLIPS), *chance.choices(footer, k=FLIPS)])
    assert found["wrong"] + delicate["wrong"] == 0
    assert found["refused"] > FLIPS // 2
    monkeypatch.setattr(seams.PAGE_HEADER_FOUND_CRC, lambda self, _: self.crc)  # the control: checksums are not looked at
    control = _outcomes(tmp_path, manifest, whole, expected, places=anywhere)
    assert control["wrong"] > 0


def _flip_in_page(file: Path, number: int) -> None:
    data = bytearray(file.read_bytes())
    _, body, end = pages(bytes(data))[number]
    data[(body + end) // 2] ^= 8
    file.write_bytes(data)


@pytest.mark.parametrize(("page", "column"), [(0, "float32"), (4, "late")], ids=["decoded by us", "decoded by Arrow"])
def test_the_error_names_file_row_group_column_and_the_next_step(tmp_path: Path, page: int, column: str) -> None:
    write_parquet(_table(), tmp_path / NAME, row_group_size=ROWS, **PLAIN)
    manifest = _manifest(tmp_path / NAME)
    _flip_in_page(tmp_path / NAME, page)
    text = rf"column {column} of row group 0 of .*{NAME} has a page with CRC-32 \w{{8}}, its header says \w{{8}}; .*datasets verify"
    with pytest.raises(DatasetError, match=text):
        _read(tmp_path, manifest)
    store = open_store(str(tmp_path))
    with pytest.raises(DatasetError, match=text):
        verify_file(store, NAME)
    with store.open_input(NAME) as source, pytest.raises(DatasetError, match=text):
        read_verified(source, path=store.path(NAME), columns=[column])
    with store.open_input(NAME) as source:
        assert read_verified(source, path=store.path(NAME), columns=["int32"]).num_rows == ROWS  # the control: another column


def test_a_read_of_several_columns_at_once_is_verified_in_all_of_them(tmp_path: Path) -> None:
    """As Arrow reads that gets what it will need beforehand, from 26 on by default."""
    write_parquet(_table(), tmp_path / NAME, row_group_size=ROWS, **PLAIN)
    store, metadata = open_store(str(tmp_path)), pq.ParquetFile(tmp_path / NAME).metadata
    chunks = [metadata.row_group(0).column(place) for place in range(3)]
    begin, size = chunks[0].data_page_offset, sum(chunk.total_compressed_size for chunk in chunks)

    def read(size: int, begin: int = begin) -> None:
        with store.open_input(NAME) as source:
            verified = VerifiedFile(source, path=NAME)
            verified.expect(metadata, 0)
            verified.seek(begin)
            verified.read_buffer(size)

    read(size)
    _flip_in_page(tmp_path / NAME, 2)
    for first in (begin, 0):  # also behind bytes that belong to no column
        with pytest.raises(DatasetError, match=r"column int32 of row group 0 of .* has a page with CRC-32"):
            read(begin + size - first, first)
    with pytest.raises(DatasetError, match=r"column int32 of row group 0 of .* was read in part"):
        read(size - 100)
    read(size - chunks[2].total_compressed_size)  # the control: the columns before it


def test_pages_without_a_checksum_are_read_unchecked(tmp_path: Path) -> None:
    """As many writers leave them; docs and audit say so."""
    pq.write_table(_table(), tmp_path / NAME, row_group_size=ROWS, compression="none", **PLAIN)
    manifest, expected = _manifest(tmp_path / NAME), _read(tmp_path, _manifest(tmp_path / NAME))
    _flip_in_page(tmp_path / NAME, 0)
    assert _read(tmp_path, manifest)["float32"] != expected["float32"]


@pytest.mark.parametrize("options", [*WRITERS, pytest.param({"write_page_index": True, "row_group_size": ROWS // 3}, id="page index")])
def test_a_copy_holds_the_same_values_and_a_checksum_a_page_and_its_footer_is_true(tmp_path: Path, options: dict[str, object]) -> None:
    pq.write_table(_table(), tmp_path / "bare", **{"row_group_size": 5000, **options})
    bare = (tmp_path / "bare").read_bytes()
    data = with_checksums(bare)
    assert (has_checksums(pa.BufferReader(bare)), has_checksums(pa.BufferReader(data))) == (False, True)
    assert pq.read_table(pa.BufferReader(data)).equals(_table())
    assert len(pages(data)) == len(pages(bare)) > 10
    assert all(header[4][1] & 0xFFFFFFFF == zlib.crc32(data[body:end]) for header, body, end in pages(data))
    before, after = (pq.ParquetFile(pa.BufferReader(each)).metadata for each in (bare, data))
    groups = range(after.num_row_groups)
    assert [after.row_group(group).num_rows for group in groups] == [before.row_group(group).num_rows for group in groups]
    column = after.row_group(after.num_row_groups - 1).column(0)
    assert (column.has_offset_index, column.has_column_index) == (False, False)
    assert column.statistics == before.row_group(before.num_row_groups - 1).column(0).statistics
    if tuple(map(int, pa.__version__.split(".")[:2])) >= ARROW_VERIFIES:  # another reader of checksums
        _, body, _ = pages(data)[-1]
        assert pq.read_table(pa.BufferReader(data), page_checksum_verification=True).equals(_table())
        damaged = bytes((*data[:body], data[body] ^ 1, *data[body + 1:]))
        with pytest.raises(OSError, match="could not verify page integrity"):
            pq.read_table(pa.BufferReader(damaged), page_checksum_verification=True)


def test_a_file_without_pages_has_nothing_to_add(tmp_path: Path) -> None:
    """As Spark writes a partition that has no rows."""
    pq.ParquetWriter(tmp_path / NAME, _table().schema).close()
    with open_store(str(tmp_path)).open_input(NAME) as source:
        assert has_checksums(source)
