"""Datasets that somebody else wrote, adopted where they lie: read as they are, or refused with nothing written."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from petastorm import make_reader
from petastorm.codecs import CompressedImageCodec, CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from petastorm.unischema import Unischema, UnischemaField
from pyspark.sql import types

from harness.parquet_files import write_parquet
from sparkring.errors import ConfigError, DatasetError, HostileDataset
from sparkring.pipelines.data.dataset.integrity import check_footers, verify_files
from sparkring.pipelines.data.dataset.unischema_pickle import COMMON_METADATA, UNISCHEMA_KEY
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.spark_jobs.etl.encoding.petastorm_schema import dataset_metadata
from sparkring.spark_jobs.stored.adopt import adopt

ROWS = 300
SCHEMA = Unischema("Photos", [
    UnischemaField("id", np.int32, (), ScalarCodec(types.IntegerType()), False),
    UnischemaField("kind", np.int16, (), ScalarCodec(types.ShortType()), False),
    UnischemaField("weight", np.float64, (), ScalarCodec(types.DoubleType()), False),
    UnischemaField("photo", np.uint8, (5, 4), CompressedImageCodec("png"), False),
    UnischemaField("track", np.float32, (2, 3), NdarrayCodec(), False),
    UnischemaField("words", np.int32, (None,), NdarrayCodec(), False)])


def _plain(folder: Path, *, first: int = 0, **more: Any) -> Path:
    """Two files of plain Parquet as pandas or Spark would write them: columns that may be null, several row groups."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(2):
        ids = np.arange(ROWS // 2) + first + number * ROWS // 2
        columns: dict[str, Any] = {"id": ids, "late": (ids % 3 == 0).astype(np.int8), "km": ids * 0.5, "seats": (ids % 7).astype(np.int16)}
        pq.write_table(pa.table(columns | {name: [value] * len(ids) for name, value in more.items()}),
                       folder / f"part-{number}.parquet", row_group_size=60)
    return folder


def _petastorm(folder: Path) -> Path:
    """A Petastorm dataset of images, arrays and ragged arrays, encoded by Petastorm's own codecs."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    rows: list[dict[str, Any]] = [
        {"id": number, "kind": number % 4, "weight": float(number), "photo": chance.integers(0, 256, (5, 4)).astype(np.uint8),
         "track": chance.random((2, 3)).astype(np.float32), "words": np.arange(number % 5, dtype=np.int32)} for number in range(ROWS)]
    kinds = {"id": pa.int32(), "kind": pa.int16(), "weight": pa.float64()}
    columns = {name: pa.array([bytes(field.codec.encode(field, row[name])) if field.shape else row[name] for row in rows],
                              kinds.get(name, pa.binary())) for name, field in SCHEMA.fields.items()}
    pq.write_table(pa.table(columns), folder / "part-0.parquet", row_group_size=100)
    metadata = dataset_metadata(pq.read_schema(folder / "part-0.parquet"), pickle.dumps(SCHEMA), {"part-0.parquet": 3})
    (folder / COMMON_METADATA).write_bytes(metadata)
    return folder


def _files(folder: Path) -> Mapping[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _rows(folder: Path, split: str = "train") -> dict[int, dict[str, Any]]:
    """Row id -> the row's tensors, through the reader and the loader."""
    dataset = Dataset(str(folder))
    reader = SplitReader(dataset.store, dataset.manifest(), split)
    loader = Loader(reader, LoaderConfig(batch_rows=64, seed=1, lanes=4), rank=0, num_ranks=1)
    return {int(batch.tensors["row_id"][row]): {name: tensor[row].numpy() for name, tensor in batch.tensors.items()}
            for batch in loader.epoch(0) for row in range(batch.rows)}


def test_plain_parquet_is_adopted_in_place_and_read_row_by_row(tmp_path: Path) -> None:
    _plain(tmp_path)
    before = _files(tmp_path)
    result = adopt(str(tmp_path), row_id="id", label="late")
    assert (result.version, result.petastorm, result.rows, result.task) == (1, False, {"train": ROWS}, "binary")
    assert {name: data for name, data in _files(tmp_path).items() if name in before} == before
    assert _files(tmp_path).keys() - before.keys() == {"_versions/1.json"}
    rows = _rows(tmp_path)
    assert sorted(rows) == list(range(ROWS))
    assert rows[7]["numeric"].tolist() == [3.5, 0.0]
    assert (rows[6]["label"], rows[7]["label"]) == (1.0, 0.0)
    manifest = Dataset(str(tmp_path)).manifest()
    assert manifest.splits["train"].positives == ROWS // 3
    dataset = Dataset(str(tmp_path))
    assert verify_files(dataset.store, manifest) == check_footers(dataset.store, manifest, manifest.splits["train"].files) == []


def test_splits_lie_in_folders_that_the_user_names(tmp_path: Path) -> None:
    _plain(tmp_path / "a")
    _plain(tmp_path / "b/c", first=1000)
    assert adopt(str(tmp_path), row_id="id", label="late", splits={"train": "a", "validation": "b/c"}).rows == {
        "train": ROWS, "validation": ROWS}
    assert sorted(_rows(tmp_path, "validation")) == list(range(1000, 1000 + ROWS))


def test_a_folder_has_several_spellings_and_a_dot_is_the_dataset_s_own(tmp_path: Path) -> None:
    _plain(tmp_path)
    _plain(tmp_path / "val", first=1000)
    assert adopt(str(tmp_path), row_id="id", label="late", splits={"train": ".", "validation": "./val/"}).rows == {
        "train": ROWS, "validation": ROWS}
    manifest = Dataset(str(tmp_path)).manifest()
    assert [file.path for split in ("train", "validation") for file in manifest.splits[split].files] == [
        "part-0.parquet", "part-1.parquet", "val/part-0.parquet", "val/part-1.parquet"]
    assert sorted(_rows(tmp_path)) == list(range(ROWS))


@pytest.mark.parametrize("folder", ["..", "a/../../b"])
def test_a_folder_outside_is_refused(tmp_path: Path, folder: str) -> None:
    _plain(tmp_path / "data")
    _plain(tmp_path / "b")
    with pytest.raises(ConfigError, match=r"leads out of .*; give a relative name without"):
        adopt(str(tmp_path / "data"), row_id="id", label="late", splits={"train": folder})


def test_a_petastorm_dataset_is_adopted_with_its_codecs_and_rows_equal_petastorm_s_own_reader(tmp_path: Path) -> None:
    _petastorm(tmp_path)
    result = adopt(str(tmp_path), row_id="id", label="kind")
    assert (result.petastorm, result.task, result.left_out) == (True, "multiclass", ("words",))
    assert set(result.tensors) == {"numeric", "categorical", "image", "track", "label", "row_id"}
    assert Dataset(str(tmp_path)).manifest().classes == 4
    rows = _rows(tmp_path)
    with make_reader(tmp_path.as_uri(), num_epochs=1, reader_pool_type="dummy") as theirs:
        for row in theirs:
            ours = rows.pop(int(row.id))
            assert ours["numeric"] == pytest.approx([row.weight])
            assert ours["label"] == row.kind
            assert (ours["track"] == row.track).all()
            assert ours["image"][0] == pytest.approx(row.photo / 255)
    assert rows == {}
    assert cv2.imdecode(np.frombuffer(pq.read_table(tmp_path / "part-0.parquet")["photo"][0].as_py(), np.uint8), -1).shape == (5, 4)


def _open_sizes(folder: Path) -> None:
    """Arrays of open size: rows that are alike, alike and compressed, and ragged."""
    schema = Unischema("Open", [UnischemaField("id", np.int64, (), ScalarCodec(types.LongType()), False),
                                UnischemaField("late", np.int8, (), ScalarCodec(types.ByteType()), False),
                                *(UnischemaField(name, np.float32, (None, 2), codec, False) for name, codec in (
                                    ("alike", NdarrayCodec()), ("packed", CompressedNdarrayCodec()), ("ragged", NdarrayCodec())))])
    rows = [{"id": number, "late": number % 2} | {name: np.full((size, 2), number, np.float32) for name, size in (
        ("alike", 3), ("packed", 4), ("ragged", 1 + number % 2))} for number in range(20)]
    kinds = {"id": pa.int64(), "late": pa.int8()}
    columns = {name: pa.array([bytes(field.codec.encode(field, row[name])) if field.shape else row[name] for row in rows],
                              kinds.get(name, pa.binary())) for name, field in schema.fields.items()}
    write_parquet(pa.table(columns), folder / "part-0.parquet", row_group_size=5, use_dictionary=False)
    metadata = dataset_metadata(pq.read_schema(folder / "part-0.parquet"), pickle.dumps(schema), {"part-0.parquet": 4})
    (folder / COMMON_METADATA).write_bytes(metadata)


def test_an_array_of_open_size_whose_rows_are_alike_is_a_tensor(tmp_path: Path) -> None:
    _open_sizes(tmp_path)
    result = adopt(str(tmp_path), row_id="id", label="late")
    assert (set(result.tensors) - {"label", "row_id"}, result.left_out) == ({"alike", "packed"}, ("ragged",))
    row = _rows(tmp_path)[7]
    assert (row["alike"].shape, row["packed"].shape, row["packed"][0, 0]) == ((3, 2), (4, 2), 7)


def test_a_damaged_page_of_an_array_whose_size_is_measured_is_refused(tmp_path: Path) -> None:
    _open_sizes(tmp_path)
    file = tmp_path / "part-0.parquet"
    whole, chunk = file.read_bytes(), pq.ParquetFile(file).metadata.row_group(2).column(2)
    assert chunk.path_in_schema == "alike"
    damaged = bytearray(whole)
    damaged[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(DatasetError, match=r"column alike of row group 2 of .*part-0\.parquet has a page with CRC-32"):
        adopt(str(tmp_path), row_id="id", label="late")
    assert not (tmp_path / "_versions").exists()


def test_half_precision_of_petastorm_is_read(tmp_path: Path) -> None:
    schema = Unischema("Half", [UnischemaField("id", np.int64, (), ScalarCodec(types.LongType()), False),
                                UnischemaField("late", np.int8, (), ScalarCodec(types.ByteType()), False),
                                UnischemaField("one", np.float16, (), ScalarCodec(types.FloatType()), False),
                                UnischemaField("pair", np.float16, (2,), NdarrayCodec(), False)])
    cells = [bytes(NdarrayCodec().encode(schema.fields["pair"], np.array([number, 0.5], np.float16))) for number in range(20)]
    pq.write_table(pa.table({"id": range(20), "late": pa.array([number % 2 for number in range(20)], pa.int8()),
                             "one": pa.array(np.arange(20, dtype=np.float32)), "pair": pa.array(cells, pa.binary())}),
                   tmp_path / "part-0.parquet")
    metadata = dataset_metadata(pq.read_schema(tmp_path / "part-0.parquet"), pickle.dumps(schema), {"part-0.parquet": 1})
    (tmp_path / COMMON_METADATA).write_bytes(metadata)
    adopt(str(tmp_path), row_id="id", label="late")
    row = _rows(tmp_path)[7]
    assert (row["numeric"].tolist(), row["pair"].tolist(), row["pair"].dtype) == ([7.0], [7.0, 0.5], np.float16)


def test_columns_that_a_batch_rounds_are_named(tmp_path: Path) -> None:
    result = adopt(str(_plain(tmp_path)), row_id="id", label="late")
    assert result.rounded == ("km",)  # a double; seats has 16 bits, and a float32 holds those


class Touches:
    """Pickles as a call that makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


def test_a_folder_whose_metadata_would_run_something_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    folder = _petastorm(tmp_path / "data")
    schema = pq.read_schema(folder / "part-0.parquet")
    evil = pickle.dumps(Unischema("Evil", [*SCHEMA.fields.values(), UnischemaField("x", np.int8, (), Touches(tmp_path / "run"), False)]))
    pq.write_metadata(schema.with_metadata({UNISCHEMA_KEY: evil}), folder / COMMON_METADATA)
    before = _files(folder)
    with pytest.raises(HostileDataset, match=r"_common_metadata asks for pathlib(\._local)?\.Path\.?"):
        adopt(str(folder), row_id="id", label="kind")
    assert not (tmp_path / "run").exists()
    assert _files(folder) == before
    pickle.loads(evil)  # the control
    assert (tmp_path / "run").exists()


@pytest.mark.parametrize(("row_id", "label", "more", "reason"), [
    pytest.param("key", "late", {}, "no column key for the row id; the columns are id, late, km, seats", id="no such row id"),
    pytest.param("km", "late", {}, "the row id km is float64", id="a row id that is no integer"),
    pytest.param("seats", "late", {}, "seats is not unique", id="a row id that repeats"),
    pytest.param("id", "side", {"side": -1}, r"label side holds -1 ...; whole numbers must be 0 and 1, or numbers",
                 id="a label that is no class"),
    pytest.param("id", "late", {"city": "Bern"}, r"not numbers: city \(string\)", id="a column of texts"),
    pytest.param("id", "late", {"wind": None}, r"columns that are not numbers: wind \(null\)", id="a column of nothing"),
])
def test_what_cannot_be_adopted_is_refused_and_nothing_is_written(
        tmp_path: Path, row_id: str, label: str, more: dict[str, Any], reason: str) -> None:
    _plain(tmp_path, **more)
    before = _files(tmp_path)
    with pytest.raises(DatasetError, match=reason):
        adopt(str(tmp_path), row_id=row_id, label=label)
    assert _files(tmp_path) == before


def test_a_label_of_fractions_is_a_regression_whose_batches_hold_it_standardised(tmp_path: Path) -> None:
    _plain(tmp_path)
    assert adopt(str(tmp_path), row_id="id", label="km").task == "regression"
    fitted = Dataset(str(tmp_path)).manifest().preprocessing.label
    km = np.arange(ROWS) * 0.5
    assert fitted is not None
    assert (fitted.mean, fitted.std) == (pytest.approx(km.mean()), pytest.approx(km.std()))
    found = {number: float(row["label"]) for number, row in _rows(tmp_path).items()}
    assert found == {number: pytest.approx((value - km.mean()) / km.std(), abs=1e-12) for number, value in enumerate(km)}


@pytest.mark.parametrize(("value", "reason"), [
    pytest.param(np.nan, r"the label wind is nan in 300 rows of the split train", id="NaN"),
    pytest.param(2.5, r"the label wind is 2.5 in all rows of the split train", id="a constant"),
])
def test_a_label_of_a_regression_is_finite_and_varies(tmp_path: Path, value: float, reason: str) -> None:
    _plain(tmp_path, wind=value)
    with pytest.raises(DatasetError, match=reason):
        adopt(str(tmp_path), row_id="id", label="wind")


@pytest.mark.parametrize("label", [-1, 2])
def test_a_held_out_label_that_no_train_row_can_have_is_refused(tmp_path: Path, label: int) -> None:
    for name, first in (("a", 0), ("b", 1000)):
        _plain(tmp_path / name, first=first)
    part = tmp_path / "b/part-1.parquet"
    table = pq.read_table(part)
    pq.write_table(table.set_column(1, "late", pa.array([label, *table["late"].to_pylist()[1:]], pa.int8())), part)
    with pytest.raises(DatasetError, match=f"the label late is {label} in 1 rows of the split test; train rows have 0 to 1 only"):
        adopt(str(tmp_path), row_id="id", label="late", splits={"train": "a", "test": "b"})
    assert not (tmp_path / "_versions").exists()
    pq.write_table(table, part)  # the control
    assert adopt(str(tmp_path), row_id="id", label="late", splits={"train": "a", "test": "b"}).rows == {"train": ROWS, "test": ROWS}


def test_files_of_two_schemas_nulls_and_empty_folders_are_refused(tmp_path: Path) -> None:
    _plain(tmp_path)
    table = pq.read_table(tmp_path / "part-1.parquet")
    pq.write_table(table.append_column("more", table["km"]), tmp_path / "part-1.parquet")
    with pytest.raises(DatasetError, match=r"part-1\.parquet has another schema than the dataset: more \(double\) is new"):
        adopt(str(tmp_path), row_id="id", label="late")
    pq.write_table(table.set_column(2, "km", pa.array([None, *table["km"].to_pylist()[1:]])), tmp_path / "part-1.parquet")
    with pytest.raises(DatasetError, match=r"column km of part-1\.parquet holds nulls"):
        adopt(str(tmp_path), row_id="id", label="late")
    with pytest.raises(DatasetError, match=r"holds no \.parquet files"):
        adopt(str(tmp_path / "nowhere"), row_id="id", label="late")
    (tmp_path / "part-1.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(DatasetError, match=r"part-1\.parquet is no readable Parquet file"):
        adopt(str(tmp_path), row_id="id", label="late")
    assert not (tmp_path / "_versions").exists()


def test_after_an_adoption_a_version_can_follow_and_other_readers_still_read(tmp_path: Path) -> None:
    _plain(tmp_path)
    adopt(str(tmp_path), row_id="id", label="late")
    dataset = Dataset(str(tmp_path))
    dataset.commit(dataset.manifest(1).model_copy(update={"version": 2, "parent": 1}))
    assert dataset.versions() == [1, 2]
    assert dataset.manifest().parent == 1
    assert pq.read_table(tmp_path).num_rows == ROWS


def test_a_label_with_the_name_of_a_column_of_scores_is_refused(tmp_path: Path) -> None:
    _plain(tmp_path, split=1)
    with pytest.raises(ConfigError, match="the row id or the label is called split, and scores have another column of that name"):
        adopt(str(tmp_path), row_id="id", label="split")


def test_a_dataset_with_versions_has_nothing_to_adopt(tmp_path: Path) -> None:
    _plain(tmp_path)
    adopt(str(tmp_path), row_id="id", label="late")
    with pytest.raises(ConfigError, match="has committed versions already"):
        adopt(str(tmp_path), row_id="id", label="late")
