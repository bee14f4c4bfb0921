"""Petastorm's Parquet dataset on any pyarrow: folders, partitions, pieces and row groups as pyarrow 14's first ParquetDataset had them."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[3]


def shim() -> ModuleType:
    """The module as it lies in the recipe, whatever wheel is installed."""
    spec = importlib.util.spec_from_file_location("legacy_parquet", ROOT / "third_party/petastorm/legacy_parquet.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


legacy = shim()


def written(folder: Path, *files: str) -> Path:
    """Files of four rows, x from 4 times the file's number on, in two row groups."""
    for number, name in enumerate(files):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"x": range(4 * number, 4 * number + 4), "y": [0.5] * 4}), folder / name, row_group_size=2)
    return folder


def paths(dataset: Any, folder: Path) -> list[str]:
    return [str(Path(piece.path).relative_to(folder)) for piece in dataset.pieces]


@pytest.fixture
def partitioned(tmp_path: Path) -> Path:
    return written(tmp_path, "day=2/kind=b/0.parquet", "day=2/kind=a/0.parquet", "day=10/kind=a/1.parquet", "day=10/kind=a/0.parquet")


def test_the_pieces_of_a_folder_are_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    written(tmp_path, "b.parquet", "a.parquet", "no_suffix")
    dataset = legacy.ParquetDataset(str(tmp_path))
    assert paths(dataset, tmp_path) == ["a.parquet", "b.parquet", "no_suffix"]
    assert (dataset.paths, list(dataset.partitions), dataset.metadata, dataset.common_metadata) == (str(tmp_path), [], None, None)


def test_what_writers_leave_beside_the_files_is_no_piece(tmp_path: Path) -> None:
    written(tmp_path, "a.parquet", "_temporary/0.parquet", ".hidden/0.parquet")
    for name in ("_SUCCESS", "a.parquet.crc", ".a.parquet.crc", "part_$folder$"):
        (tmp_path / name).touch()
    assert paths(legacy.ParquetDataset(str(tmp_path)), tmp_path) == ["a.parquet"]


def test_common_metadata_is_read_and_metadata_stands_for_it_where_there_is_none(tmp_path: Path) -> None:
    written(tmp_path, "a.parquet")
    pq.write_metadata(pa.schema([("x", pa.int64())], {"from": "summary"}), tmp_path / "_metadata")
    assert legacy.ParquetDataset(str(tmp_path)).common_metadata.metadata[b"from"] == b"summary"
    pq.write_metadata(pa.schema([("x", pa.int64())], {"from": "common"}), tmp_path / "_common_metadata")
    dataset = legacy.ParquetDataset(str(tmp_path))
    assert dataset.common_metadata.metadata[b"from"] == b"common"
    assert dataset.metadata.metadata[b"from"] == b"summary"
    assert (dataset.metadata_path, dataset.common_metadata_path) == (f"{tmp_path}/_metadata", f"{tmp_path}/_common_metadata")


def test_the_names_of_folders_are_partitions_and_become_columns(partitioned: Path) -> None:
    dataset = legacy.ParquetDataset(str(partitioned))
    assert [(level.name, level.keys, level.dictionary.to_pylist()) for level in dataset.partitions] == [
        ("day", ["10", "2"], [10, 2]), ("kind", ["a", "b"], ["a", "b"])]
    assert dataset.partitions.partition_names == {"day", "kind"}
    assert [piece.partition_keys for piece in dataset.pieces] == [
        [("day", 0), ("kind", 0)], [("day", 0), ("kind", 0)], [("day", 1), ("kind", 0)], [("day", 1), ("kind", 1)]]
    table = dataset.pieces[3].read(columns={"x"}, partitions=dataset.partitions)
    assert table.to_pydict() == {"x": [0, 1, 2, 3], "day": [2] * 4, "kind": ["b"] * 4}
    with pytest.raises(ValueError, match="partition sets"):
        dataset.pieces[3].read()


@pytest.mark.parametrize(("filters", "kept"), [
    pytest.param([("day", "=", 2)], ["day=2/kind=a/0.parquet", "day=2/kind=b/0.parquet"], id="one"),
    pytest.param([("day", "<", 10), ("kind", "!=", "a")], ["day=2/kind=b/0.parquet"], id="all of a list"),
    pytest.param([[("day", "==", "10")], [("kind", "in", {"b", "c"})]],
                 ["day=10/kind=a/0.parquet", "day=10/kind=a/1.parquet", "day=2/kind=b/0.parquet"], id="any of a list of lists"),
    pytest.param([("kind", "not in", {"a"}), ("x", ">", 7)], ["day=2/kind=b/0.parquet"], id="a column that is no partition"),
    pytest.param([("day", ">=", 11)], [], id="none"),
])
def test_filters_leave_out_files_by_their_partitions(partitioned: Path, filters: list[Any], kept: list[str]) -> None:
    assert paths(legacy.ParquetDataset(str(partitioned), filters=filters), partitioned) == kept


def test_a_piece_is_a_file_or_one_row_group_and_travels_to_other_processes(tmp_path: Path) -> None:
    dataset = legacy.ParquetDataset(str(written(tmp_path, "a.parquet")))
    whole = dataset.pieces[0]
    assert whole.get_metadata().num_row_groups == 2
    assert whole.read().column_names == ["x", "y"]
    second = legacy.ParquetDatasetPiece(whole.path, open_file_func=dataset.fs.open, row_group=1)
    assert second.read(columns=["x"]).to_pydict() == {"x": [2, 3]}
    assert second != whole
    assert second == legacy.ParquetDatasetPiece(whole.path, row_group=1)
    opened = pickle.loads(pickle.dumps(dataset.fs.open))
    assert legacy.ParquetDatasetPiece(whole.path, open_file_func=opened, row_group=0).read(columns=["x"]).to_pydict() == {"x": [0, 1]}


def test_files_may_be_named_one_by_one(tmp_path: Path) -> None:
    names = [f"{written(tmp_path, 'a.parquet', 'b.parquet')}/{name}.parquet" for name in ("b", "a")]
    assert paths(legacy.ParquetDataset(names), tmp_path) == ["b.parquet", "a.parquet"]
    assert legacy.ParquetDataset(names).partitions is None
    assert paths(legacy.ParquetDataset(names[:1]), tmp_path) == paths(legacy.ParquetDataset(names[0]), tmp_path) == ["b.parquet"]
    assert paths(legacy.ParquetDataset([str(tmp_path)]), tmp_path) == ["a.parquet", "b.parquet"]  # one folder in a list


@pytest.mark.parametrize(("given", "error"), [
    ("missing", "Passed non-file path"), (["a.parquet", "folder"], "Passed non-file path"), ([], "at least one file"),
    ("mixed", "Found files in an intermediate directory"), ("plain", "did not appear to be a partition"),
    ("twice", "was the name of the partition in another level")])
def test_what_is_no_dataset_is_refused(tmp_path: Path, given: str | list[str], error: str) -> None:
    written(tmp_path, "a.parquet", "folder/a.parquet", "mixed/a.parquet", "mixed/day=1/a.parquet", "plain/sub/a.parquet",
            "twice/day=1/day=2/a.parquet")
    wanted = str(tmp_path / given) if isinstance(given, str) else [str(tmp_path / name) for name in given]
    with pytest.raises((OSError, ValueError), match=error):
        legacy.ParquetDataset(wanted)


def test_a_filter_that_compares_by_no_known_operator_is_refused(partitioned: Path) -> None:
    with pytest.raises(ValueError, match="'like' is not a valid operator"):
        legacy.ParquetDataset(str(partitioned), filters=[("day", "like", 2)])


def test_text_is_objects_and_none_in_any_pandas() -> None:
    table = pa.table({"text": pa.array(["a", None], pa.string()), "large": pa.array([None, "b"], pa.large_string()), "n": [1, 2]})
    frame = legacy.to_pandas(table)
    assert frame.to_dict("records") == [{"text": "a", "large": None, "n": 1}, {"text": None, "large": "b", "n": 2}]
    assert [str(dtype) for dtype in frame.dtypes] == ["object", "object", "int64"]
    for column in (table["text"], table["text"].chunk(0)):
        assert (str(legacy.to_pandas(column).dtype), list(legacy.to_pandas(column))) == ("object", ["a", None])
    assert str(legacy.to_pandas(table["n"]).dtype) == "int64"


@pytest.mark.parametrize("kind", ["this machine's", "pyarrow's", "fsspec's, of another store"])
def test_any_file_system_will_do(tmp_path: Path, kind: str) -> None:
    written(tmp_path, "k=1/a.parquet", "k=2/a.parquet")
    filesystem: Any = {"pyarrow's": pyarrow.fs.LocalFileSystem()}.get(kind)
    root = str(tmp_path)
    if kind.startswith("fsspec"):
        filesystem, root = fsspec.filesystem("memory"), f"/{tmp_path.name}"
        for file in ("k=1/a.parquet", "k=2/a.parquet"):
            filesystem.pipe(f"{root}/{file}", (tmp_path / file).read_bytes())
    dataset = legacy.ParquetDataset(root, filesystem=filesystem, filters=[("k", "=", 2)])
    assert [piece.read(partitions=dataset.partitions).to_pydict() for piece in dataset.pieces] == [
        {"x": [4, 5, 6, 7], "y": [0.5] * 4, "k": [2] * 4}]
