"""Images, tokens and arrays that Petastorm's codecs wrote, as tensors; augmentation; the memory budget."""

from __future__ import annotations

import gc
import io
import resource
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparkring.errors import ConfigError, DatasetError, StorageError
from sparkring.pipelines.data.dataset.row_schema import Augment, Codec, DataField
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.buffered_rows import DenseRows, EncodedRows
from sparkring.pipelines.data.loading.codecs import decode, uniform_arrays
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from tests.support.encoded_datasets import Rows, write_encoded_dataset

GROUPS = (50, 1, 0, 70, 33)
COUNT = sum(GROUPS)
SCALE, SHIFT = 1 / (255 * np.array([0.2, 0.3, 0.4])), np.array([0.5, 0.4, 0.3]) / np.array([0.2, 0.3, 0.4])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Rows]:
    return write_encoded_dataset(tmp_path_factory.mktemp("encoded"), GROUPS)


def _loader(dataset: Dataset, *, rank: int = 0, num_ranks: int = 1, batch_rows: int = 16, memory_mb: float = 64.0, threads: int = 1,
            tensors: list[str] | None = None) -> Loader:
    config = LoaderConfig(batch_rows=batch_rows, seed=3, lanes=6, reader_threads=threads, memory_mb=memory_mb, deadline_s=20)
    return Loader(SplitReader(dataset.store, dataset.manifest(), "train", tensors=tensors), config, rank=rank, num_ranks=num_ranks)


def _epoch(dataset: Dataset, epoch: int = 0, **options: float) -> dict[str, Tensor]:
    batches = list(_loader(dataset, **options).epoch(epoch))  # type: ignore[arg-type]
    return {name: torch.cat([batch.tensors[name] for batch in batches]) for name in batches[0].tensors}


def _by_id(*epochs: dict[str, Tensor]) -> dict[str, Tensor]:
    joined = {name: torch.cat([epoch[name] for epoch in epochs]) for name in epochs[0]}
    order = joined["row_id"].argsort()
    return {name: tensor[order] for name, tensor in joined.items()}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("memory_mb", [64.0, 0.0])
def test_every_cell_comes_out_as_it_was_encoded(written: tuple[Dataset, Rows], threads: int, memory_mb: float) -> None:
    dataset, rows = written
    seen = _by_id(_epoch(dataset, threads=threads, memory_mb=memory_mb))
    assert seen["row_id"].tolist() == list(range(COUNT))
    np.testing.assert_array_equal(seen["tokens"].numpy(), rows.tokens)
    np.testing.assert_array_equal(seen["packed"].numpy(), rows.packed)
    np.testing.assert_allclose(seen["image"].numpy(), np.moveaxis(rows.images * SCALE - SHIFT, 3, 1), atol=1e-5)
    padded = np.full((COUNT, 4), -1.0, dtype=np.float32)
    for row, values in enumerate(rows.ragged):
        padded[row, :len(values[:4])] = values[:4]
    np.testing.assert_array_equal(seen["ragged"].numpy(), padded)


@pytest.mark.parametrize("row", [0, 60, COUNT - 1])
def test_no_row_is_lost_where_cells_of_one_window_are_laid_out_differently(tmp_path: Path, row: int) -> None:
    dataset, rows = write_encoded_dataset(tmp_path / "dataset", GROUPS, other_header=row)
    loader = _loader(dataset, batch_rows=48)
    assert all({len(tensor) for tensor in batch.tensors.values()} == {batch.rows} for batch in loader.epoch(0))
    np.testing.assert_array_equal(_by_id(_epoch(dataset))["tokens"].numpy(), rows.tokens)


def test_a_batch_of_no_rows_has_the_shapes_of_any_other(written: tuple[Dataset, Rows]) -> None:
    batch = next(_loader(written[0], rank=6, num_ranks=7).epoch(0))
    assert {name: tuple(tensor.shape) for name, tensor in batch.tensors.items()} == {
        "image": (0, 3, 8, 6), "tokens": (0, 5), "ragged": (0, 4), "packed": (0, 2, 3), "row_id": (0,)}


def test_augmentation_depends_on_seed_epoch_and_row_alone(tmp_path: Path) -> None:
    dataset, _ = write_encoded_dataset(tmp_path / "augmented", GROUPS, augment=Augment(flip=True, crop_padding=2))
    plain, _ = write_encoded_dataset(tmp_path / "plain", GROUPS)
    alone = _by_id(_epoch(dataset))
    ranks = _by_id(*(_epoch(dataset, rank=rank, num_ranks=3, batch_rows=25) for rank in range(3)))
    torch.testing.assert_close(alone["image"], ranks["image"], rtol=0, atol=0)
    changed = (alone["image"] != _by_id(_epoch(plain))["image"]).flatten(1).any(1).float().mean()
    other_epoch = (alone["image"] != _by_id(_epoch(dataset, 1))["image"]).flatten(1).any(1).float().mean()
    assert min(changed, other_epoch) > 0.9  # a shift of nothing and no flip: 1 row in 50


def test_augmentation_reads_the_row_ids_that_nobody_asked_for(tmp_path: Path) -> None:
    dataset, _ = write_encoded_dataset(tmp_path, GROUPS, augment=Augment(flip=True))
    whole = torch.cat([batch.tensors["image"] for batch in _loader(dataset).epoch(0)])
    batches = list(_loader(dataset, tensors=["image"]).epoch(0))
    assert set(batches[0].tensors) == {"image"}
    torch.testing.assert_close(torch.cat([batch.tensors["image"] for batch in batches]), whole, rtol=0, atol=0)


def test_what_exceeds_the_budget_is_kept_on_disk(tmp_path: Path) -> None:
    dense = DenseRows(np.arange(12, dtype=np.float32).reshape(3, 4).T).spill(tmp_path)
    encoded = EncodedRows(pa.array([b"one", b"", b"three"])).spill(tmp_path)
    assert dense.nbytes == 0
    assert np.asarray(dense.take(1, 3)).tolist() == [[1, 5, 9], [2, 6, 10]]
    assert encoded.take(0, 2) == [b"one", b""]
    assert encoded.take(2, 3) == [b"three"]
    assert list(tmp_path.iterdir()) == []  # the file has no name: nothing stays behind, however the process ends


def test_a_disk_that_rows_cannot_wait_on_is_named(written: tuple[Dataset, Rows], tmp_path: Path) -> None:
    dataset, _ = written
    reader = SplitReader(dataset.store, dataset.manifest(), "train")
    config = LoaderConfig(batch_rows=16, seed=3, lanes=6, memory_mb=0, spill_folder=tmp_path / "gone", deadline_s=20)
    with pytest.raises(StorageError, match=rf"cannot be written to {tmp_path}/gone: No such file or directory; free space there, name"):
        list(Loader(reader, config, rank=0, num_ranks=1).epoch(0))
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # as of a full disk, writes fail from then on
    try:
        with pytest.raises(StorageError, match=rf"cannot be written to {tmp_path}: File too large; .* or raise train\.memory_mb"):
            list(Loader(reader, replace(config, spill_folder=tmp_path), rank=0, num_ranks=1).epoch(0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert sum(batch.rows for batch in Loader(reader, replace(config, spill_folder=tmp_path), rank=0, num_ranks=1).epoch(0)) == COUNT


def test_the_position_of_a_loader_is_taken_up_by_a_ring_of_another_size(written: tuple[Dataset, Rows]) -> None:
    dataset, _ = written
    first = _loader(dataset)
    first.set_epoch(2)
    rows = iter(first)
    head = [next(rows).tensors["row_id"] for _ in range(4)]
    state = first.state_dict()
    assert (state["epoch"], state["step"], len(first)) == (2, 4, -(-COUNT // 16))
    rest = []
    for rank in range(2):
        loader = _loader(dataset, rank=rank, num_ranks=2)
        loader.load_state_dict(state)
        rest += [batch.tensors["row_id"] for batch in loader]
        assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (3, 0)
    assert sorted(torch.cat(head + rest).tolist()) == list(range(COUNT))


def test_a_position_in_another_order_is_refused(written: tuple[Dataset, Rows]) -> None:
    with pytest.raises(ConfigError, match="give it the same seed, lanes and batch_rows"):
        _loader(written[0]).load_state_dict(_loader(written[0], batch_rows=8).state_dict())


def _npy(array: np.ndarray, **options: bool) -> bytes:
    cell = io.BytesIO()
    np.save(cell, array, **options)
    return cell.getvalue()


def _npz(array: np.ndarray, *, flipped: int | None = None) -> bytes:
    """As ``numpy.savez_compressed`` writes it; with one byte inverted."""
    cell = io.BytesIO()
    np.savez_compressed(cell, arr=array)
    data = bytearray(cell.getvalue())
    if flipped is not None:
        data[flipped] ^= 0xFF
    return bytes(data)


def _claiming(shape: str) -> bytes:
    """A cell of 12 bytes whose header says another shape."""
    return _npy(np.zeros(3, np.int32)).replace(b"(3,), }" + b" " * (len(shape) - 4), f"{shape}, }}".encode())


def test_arrays_of_one_header_are_decoded_without_a_copy_and_others_one_by_one() -> None:
    field = DataField(name="x", dtype="int32", shape=(3,), codec="ndarray")
    same = pa.array([_npy(np.arange(3, dtype=np.int32) + row) for row in range(5)])
    decoded = uniform_arrays(same.slice(1, 3), field)
    assert decoded is not None
    assert decoded.tolist() == [[1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert decoded.base is not None
    assert uniform_arrays(pa.array([_npy(np.zeros(3, np.int32)), _npy(np.zeros(3, np.int64))]), field) is None
    assert uniform_arrays(pa.array([_npy(np.zeros(3, np.int32)), _npy(np.zeros(3, np.float32))]), field) is None
    assert uniform_arrays(pa.array([_npy(np.arange(3, dtype=np.int32)) + b"more"] * 2), field) is None  # to be read as one cell alone is
    assert uniform_arrays(pa.array([_npy(np.asfortranarray(np.zeros((2, 2))))] * 2), DataField(
        name="x", dtype="float64", shape=(2, 2), codec="ndarray")) is None


def _interrupted(read: Callable[[], NDArray[np.generic]]) -> list[NDArray[np.generic]]:
    """What ten reads give while others come in between, as those of another thread do.

    Python 3.11 collects garbage wherever an object is made, and lets other threads go on if that runs Python code. Here that code reads.
    """
    def read_in_between(phase: str, info: dict[str, int]) -> None:
        read()

    thresholds = gc.get_threshold()
    gc.callbacks.append(read_in_between)
    gc.set_threshold(1)
    try:
        return [read() for _ in range(10)]
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(read_in_between)


@pytest.mark.parametrize(("codec", "cell"), [("ndarray", _npy(np.ones((2, 3)))), ("compressed_ndarray", _npz(np.ones((2, 3))))])
def test_threads_decode_at_once(codec: Codec, cell: bytes) -> None:
    field = DataField(name="x", dtype="float64", shape=(2, 3), codec=codec)
    for decoded in _interrupted(lambda: decode(cell, field)):
        np.testing.assert_array_equal(decoded, np.ones((2, 3)))


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="since 3.12, CPython collects garbage between instructions only")
def test_threads_cannot_load_arrays_by_numpy_at_once() -> None:
    with pytest.raises(SystemError, match="recursion depth mismatch"):  # the control of the test above
        _interrupted(lambda: np.load(io.BytesIO(_npy(np.ones((2, 3))))))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_an_array_is_decoded_as_numpy_loads_it(version: tuple[int, int]) -> None:
    for array in (np.full((), 2.5), np.zeros((0, 3), np.int64), np.array([True, False]), np.arange(6, dtype=np.float16).reshape(2, 3),
                  np.asfortranarray(np.arange(6).reshape(2, 3))):
        cell = io.BytesIO()
        np.lib.format.write_array(cell, array, version=version)
        decoded = decode(cell.getvalue(), DataField(name="x", dtype=array.dtype.name, shape=array.shape, codec="ndarray"))
        np.testing.assert_array_equal(decoded, array)
        assert (decoded.dtype, decoded.flags.f_contiguous) == (array.dtype, array.flags.f_contiguous)


def test_an_array_of_an_old_numpy_is_decoded_by_numpy() -> None:
    with warnings.catch_warnings(action="ignore"):  # newer NumPys warn of Python 2
        decoded = decode(_claiming("(3L,)"), DataField(name="x", dtype="int32", shape=(3,), codec="ndarray"))
    assert decoded.tolist() == [0, 0, 0]


@pytest.mark.parametrize(("cell", "codec", "complaint"), [
    pytest.param(b"\x93NUMPY\x01", "ndarray", "a cell is not ndarray", id="cut off"),
    pytest.param(_npy(np.array([print, 1, 2]), allow_pickle=True), "ndarray", "a cell is not ndarray", id="a pickle"),
    pytest.param(_npy(np.zeros(3, np.int32)).replace(b"'<i4'", b"'<q9'"), "ndarray", "a cell is not ndarray", id="no type"),
    pytest.param(_claiming("(1 2,)"), "ndarray", "a cell is not ndarray", id="no shape"),
    pytest.param(_npy(np.zeros(3, np.int32))[:-1], "ndarray", "a cell is not ndarray", id="cut off in its values"),
    pytest.param(b"PK\x03\x04", "compressed_ndarray", "a cell is not compressed_ndarray", id="no zip"),
    pytest.param(_npz(np.zeros(3, np.int32), flipped=75), "compressed_ndarray", "a cell is not compressed_ndarray", id="damaged inside"),
    pytest.param(_npy(np.zeros(3, np.int32)), "compressed_ndarray", "a cell is not compressed_ndarray", id="an array that is not packed"),
    pytest.param(_claiming("(99999999999999,)"), "ndarray", "a cell is not ndarray", id="a shape beyond all memory"),
    pytest.param(b"\x89PNG", "png", "a cell is not png", id="no image"),
    pytest.param(_npy(np.zeros(3)), "ndarray", r"holds float64 of shape \(3,\), the manifest says int32", id="another type"),
    pytest.param(_npy(np.zeros(4, np.int32)), "ndarray", r"holds int32 of shape \(4,\)", id="another shape"),
])
def test_a_cell_that_is_not_what_the_manifest_says_is_refused(cell: bytes, codec: Codec, complaint: str) -> None:
    with pytest.raises(DatasetError, match=complaint):
        decode(cell, DataField(name="x", dtype="int32", shape=(3,), codec=codec))
