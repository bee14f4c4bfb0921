"""Files against their manifest: every kind of damage is found and named, by the quick check or by the full one."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.datasets import write_dataset
from sparkring.pipelines.data.dataset.integrity import check_footers, schema_drift, verify_files
from sparkring.pipelines.data.dataset.manifest import DataFile
from sparkring.pipelines.data.dataset.row_schema import DataField
from sparkring.pipelines.data.dataset.versions import Dataset
from tests.support.corruptions import DAMAGES, flip_bit

FILES = ([40, 30], [50], [7, 0, 9], [61])
CORRUPTIONS = 200
ONE = "data/d1/train/part-0.parquet"
OTHER = "data/d1/train/part-1.parquet"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "dataset", FILES)
    return tmp_path / "dataset"


def _files(dataset: Dataset) -> list[DataFile]:
    return [file for split in dataset.manifest().splits.values() for file in split.files]


def _quick(folder: Path) -> dict[str, str]:
    dataset = Dataset(str(folder))
    return {finding.path: finding.text for finding in check_footers(dataset.store, dataset.manifest(), _files(dataset))}


def _full(folder: Path) -> dict[str, str]:
    dataset = Dataset(str(folder))
    return {finding.path: finding.text for finding in verify_files(dataset.store, dataset.manifest())}


def _size_only(folder: Path) -> set[str]:
    """The control: what a look at names and sizes finds."""
    files = {file.path: file.bytes for file in _files(Dataset(str(folder)))}
    found = {str(path.relative_to(folder)): path.stat().st_size for path in (folder / "data").rglob("*.parquet")}
    return {path for path in files.keys() | found.keys() if files.get(path) != found.get(path)}


def _rewrite(path: Path, change: Callable[[pa.Table], pa.Table], *, group_rows: int = 40) -> None:
    pq.write_table(change(pq.read_table(path)), path, row_group_size=group_rows)


def test_files_as_they_were_committed_are_found_right(folder: Path) -> None:
    assert _quick(folder) == {}
    assert _full(folder) == {}


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / ONE).unlink()
    assert _quick(folder) == _full(folder) == {ONE: "is missing"}


def test_a_truncated_file_is_named_with_its_sizes(folder: Path) -> None:
    size = (folder / ONE).stat().st_size
    (folder / ONE).write_bytes((folder / ONE).read_bytes()[:100])
    assert _quick(folder) == _full(folder) == {ONE: f"is truncated: it has 100 bytes, the manifest says {size}"}
    (folder / ONE).write_bytes(b"")
    assert _quick(folder).keys() == _full(folder).keys() == {ONE}


def test_exchanged_files_are_named_as_such(folder: Path) -> None:
    one, other = (folder / ONE).read_bytes(), (folder / OTHER).read_bytes()
    (folder / ONE).write_bytes(other)
    (folder / OTHER).write_bytes(one)
    for found in (_quick(folder), _full(folder)):
        assert found.keys() == {ONE, OTHER}
        assert OTHER in found[ONE]
        assert "exchanged" in found[OTHER]


def test_a_row_group_too_many_and_rows_moved_between_row_groups_are_named(folder: Path) -> None:
    _rewrite(folder / ONE, lambda table: pa.concat_tables([table, table.slice(0, 10)]))
    _rewrite(folder / OTHER, lambda table: table, group_rows=25)
    found = _quick(folder)
    assert found[OTHER] == "has 2 row groups of 50 rows, the manifest says 1 of 50"
    assert found[ONE].startswith("has 40 rows in row group 1") or "row groups of 80 rows" in found[ONE]


def test_files_beside_those_of_the_version_are_named_by_the_full_check(folder: Path) -> None:
    extra = folder / "data/d1/validation/part-9.parquet"
    shutil.copy(folder / ONE, extra)
    (folder / "data/d1/train/_common_metadata").write_bytes(b"Petastorm's own")
    (folder / "data/d1/train/.part-0.parquet.crc").write_bytes(b"Hadoop's own")
    assert _full(folder) == {"data/d1/validation/part-9.parquet": "is extra: the manifest does not name it"}
    assert _quick(folder) == {}


@pytest.mark.parametrize(("change", "text"), [
    pytest.param(lambda table: table.drop_columns(["colour"]), "colour (int32) is gone", id="a dropped column"),
    pytest.param(lambda table: table.append_column(pa.field("hue", pa.string()), [["x"] * len(table)]), "hue (string) is new",
                 id="an added column"),
    pytest.param(lambda table: table.set_column(1, pa.field("late", pa.int64(), nullable=False), table["late"].cast(pa.int64())),
                 "late is int64 instead of int8", id="a retyped column"),
    pytest.param(lambda table: table.set_column(1, pa.field("late", pa.int8(), nullable=True), table["late"]),
                 "late may be null, which the manifest rules out", id="a column that may now be null"),
])
def test_a_changed_schema_is_told_as_a_diff(folder: Path, change: Callable[[pa.Table], pa.Table], text: str) -> None:
    _rewrite(folder / ONE, change)
    assert _quick(folder) == {ONE: f"has another schema than the manifest: {text}"}


def test_a_coded_column_is_bytes_and_an_unsigned_one_may_be_stored_as_spark_stores_it() -> None:
    fields = (DataField(name="photo", dtype="uint8", shape=(28, 28), codec="png"), DataField(name="age", dtype="uint8"))

    def drift(photo: pa.DataType, age: pa.DataType) -> list[str]:
        return schema_drift(fields, pa.schema([pa.field("photo", photo, nullable=False), pa.field("age", age, nullable=False)]))

    assert drift(pa.binary(), pa.int16()) == drift(pa.large_binary(), pa.uint8()) == []
    assert drift(pa.string(), pa.int32()) == ["photo is string instead of binary", "age is int32 instead of uint8"]


def test_an_edited_manifest_is_named_by_the_full_check(folder: Path) -> None:
    path = folder / "versions/1.json"
    sha256 = _files(Dataset(str(folder)))[0].sha256
    path.write_text(path.read_text().replace(sha256, "0" * 64))
    assert "its own fields and hashes give" in _full(folder)["1.json"]


def test_of_200_seeded_corruptions_all_are_found_and_named_and_sizes_alone_miss_bits(tmp_path: Path) -> None:
    write_dataset(tmp_path / "whole", FILES)
    missed_by_size, by_quick = [], 0
    for seed in range(CORRUPTIONS):
        chance = random.Random(seed)
        folder = tmp_path / f"damaged-{seed}"
        shutil.copytree(tmp_path / "whole", folder)
        damage = DAMAGES[seed % len(DAMAGES)]
        damaged = {str(path.relative_to(folder)) for path in damage(sorted((folder / "data").rglob("*.parquet")), chance)}
        found = _full(folder)
        assert found.keys() == damaged, (seed, damage, found)
        by_quick += damaged <= _quick(folder).keys()
        if not damaged <= _size_only(folder):
            missed_by_size.append(damage)
        shutil.rmtree(folder)
    assert missed_by_size.count(flip_bit) == sum(DAMAGES[seed % len(DAMAGES)] is flip_bit for seed in range(CORRUPTIONS))
    assert by_quick >= CORRUPTIONS // 2  # the footers tell most of it before a run begins


def test_a_read_of_damaged_footers_raises_nothing(folder: Path) -> None:
    data = bytearray((folder / ONE).read_bytes())
    noise = np.random.default_rng(3)
    for _ in range(100):
        torn = bytearray(data)
        for place in noise.integers(len(data) - 1500, len(data), 20):
            torn[place] ^= 0xFF
        (folder / ONE).write_bytes(torn)
        assert _quick(folder).keys() <= {ONE}
        assert _full(folder).keys() == {ONE}
