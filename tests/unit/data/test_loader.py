"""The loader reads exactly a rank's rows, goes on from any step, and names the file when one is not what it was."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from harness.datasets import NUMERIC, write_dataset
from sparkring.errors import ConfigError, DatasetError, StorageError
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading import reader as reader_module
from sparkring.pipelines.data.loading.buffered_rows import BufferedRows
from sparkring.pipelines.data.loading.loader import MB, Batch, Loader, LoaderConfig
from sparkring.pipelines.data.loading.read_ahead import Budget, Kept
from sparkring.pipelines.data.loading.reader import SplitReader
from tests.support import seams

FILES = ([100, 50], [7], [0, 33], [1], [500])
ROWS = 691


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_dataset(tmp_path_factory.mktemp("loader"), FILES)


def _loader(dataset: Dataset, *, rank: int = 0, num_ranks: int = 1, lanes: int = 24, threads: int = 2) -> Loader:
    config = LoaderConfig(batch_rows=64, seed=3, lanes=lanes, reader_threads=threads, deadline_s=20)
    return Loader(SplitReader(dataset.store, dataset.manifest(), "train"), config, rank=rank, num_ranks=num_ranks)


def _ids(batch: Batch) -> list[int]:
    ids: list[int] = batch.tensors["row_id"].tolist()
    return ids


def test_a_batch_holds_the_manifest_s_tensors(dataset: Dataset) -> None:
    batch = next(_loader(dataset).epoch(0))
    assert {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in batch.tensors.items()} == {
        "numeric": ((64, 3), torch.float32), "categorical": ((64, 1), torch.int64), "label": ((64,), torch.float32),
        "row_id": ((64,), torch.int64)}


def test_the_values_of_a_row_stay_together(dataset: Dataset) -> None:
    paths = [dataset.store.path(file.path) for file in dataset.manifest().splits["train"].files]
    table = pq.ParquetDataset(paths).read().to_pandas().set_index("row_id")
    for batch in _loader(dataset).epoch(0):
        expected = table.loc[_ids(batch)]
        assert torch.equal(batch.tensors["numeric"], torch.tensor(expected[list(NUMERIC)].to_numpy()))
        assert batch.tensors["label"].tolist() == expected["late"].tolist()
        assert batch.tensors["categorical"][:, 0].tolist() == expected["colour"].tolist()


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 13, 24])
def test_the_ranks_together_read_every_row_once_in_the_same_steps(dataset: Dataset, num_ranks: int) -> None:
    ranks = [list(_loader(dataset, rank=rank, num_ranks=num_ranks).epoch(1)) for rank in range(num_ranks)]
    steps = [sorted(row for batch in step for row in _ids(batch)) for step in zip(*ranks, strict=True)]
    assert steps == [sorted(_ids(batch)) for batch in _loader(dataset).epoch(1)]
    assert sorted(row for step in steps for row in step) == list(range(ROWS))
    assert all(batch.rows == len(_ids(batch)) for batches in ranks for batch in batches)


def test_a_rank_without_lanes_has_a_batch_of_no_rows_a_step(dataset: Dataset) -> None:
    batches = list(_loader(dataset, rank=24, num_ranks=25).epoch(0))
    assert [(batch.rows, tuple(batch.tensors["numeric"].shape)) for batch in batches] == [(0, (0, 3))] * 11


@pytest.mark.parametrize(("rank", "num_ranks"), [(0, 1), (1, 2)])
def test_a_rank_that_reads_nothing_knows_the_rows_of_its_micro_batches(dataset: Dataset, rank: int, num_ranks: int) -> None:
    config = LoaderConfig(batch_rows=64, seed=3, lanes=24, micro_batches=6, deadline_s=20)
    reading, idle = (Loader(SplitReader(dataset.store, dataset.manifest(), "train", tensors=names), config, rank=rank, num_ranks=num_ranks)
                     for names in (["row_id"], []))
    parts = [batch.micro_batch_rows for batch in reading.epoch(3, first_step=2)]
    assert [batch.micro_batch_rows for batch in idle.epoch(3, first_step=2)] == parts
    assert {len(counts) for counts in parts} == {6 // num_ranks}
    assert {batch.epoch for batch in (*reading.epoch(3), *idle.epoch(3))} == {3}


def test_going_on_from_a_step_gives_the_rest_of_the_epoch(dataset: Dataset) -> None:
    whole = [_ids(batch) for batch in _loader(dataset).epoch(2)]
    for step in (0, 1, 5, 10):
        assert [_ids(batch) for batch in _loader(dataset).epoch(2, first_step=step)] == whole[step:]


def test_going_on_from_a_step_does_not_read_what_was_seen(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, int]] = []
    original = SplitReader.read

    def counted(self: SplitReader, group: int, start: int, stop: int, order: object) -> object:
        read.append((group, stop - start))
        return original(self, group, start, stop, order)  # type: ignore[arg-type]

    monkeypatch.setattr(seams.SPLIT_READER_READ, counted)
    list(_loader(dataset, lanes=3).epoch(0, first_step=10))  # the last step, of 51 rows
    assert sum(rows for _, rows in read) <= 51 + 3 * 500  # at most what is left and each lane's current window
    read.clear()
    list(_loader(dataset, lanes=3).epoch(0))
    assert sum(rows for _, rows in read) == ROWS


@pytest.mark.parametrize("num_ranks", [2, 5, 13, 24])
def test_a_rank_reads_the_windows_of_its_own_lanes_once_and_nothing_else(
        dataset: Dataset, monkeypatch: pytest.MonkeyPatch, num_ranks: int) -> None:
    read: list[tuple[int, int, int]] = []
    original = SplitReader.read

    def noted(self: SplitReader, group: int, start: int, stop: int, order: object) -> object:
        read.append((group, start, stop))
        return original(self, group, start, stop, order)  # type: ignore[arg-type]

    monkeypatch.setattr(seams.SPLIT_READER_READ, noted)
    rows = 0
    for rank in range(num_ranks):
        loader = _loader(dataset, rank=rank, num_ranks=num_ranks)
        list(loader.epoch(1))
        windows = [window for lane in range(rank, 24, num_ranks) for window in loader.order(1).windows(lane)]
        assert sorted(read) == sorted((window.group, window.start, window.stop) for window in windows)
        rows += sum(stop - start for _, start, stop in read)
        read.clear()
    assert rows == ROWS  # no row is read by two ranks


def test_rows_that_wait_in_memory_never_exceed_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = write_dataset(tmp_path, [[4_000] * 12])
    reader = SplitReader(dataset.store, dataset.manifest(), "train")
    held: list[int] = []
    original = Budget.admit

    def noted(self: Budget, blocks: dict[str, BufferedRows]) -> Kept:
        kept = original(self, blocks)
        held.append(self._held)
        return kept

    def most_held(memory_mb: float) -> int:
        held.clear()
        loader = Loader(reader, LoaderConfig(batch_rows=500, seed=3, lanes=6, memory_mb=memory_mb), rank=0, num_ranks=1)
        assert sorted(row for batch in loader.epoch(0) for row in _ids(batch)) == list(range(48_000))
        return max(held)

    monkeypatch.setattr(seams.BUDGET_ADMIT, noted)
    reading = reader.making_bytes()  # what a reader thread has in hands counts too
    assert 0 < most_held(1.0) <= MB - reading
    assert most_held(64.0) > MB - reading  # the control: what there would be to hold


def test_a_row_group_that_is_large_once_decoded_is_read_column_by_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = write_dataset(tmp_path, [[500]])
    asked: list[list[str]] = []
    original = reader_module.read_rows

    def noted(parquet: pq.ParquetFile, index: int, start: int, stop: int, columns: list[str]) -> pa.Table:
        asked.append(columns)
        return original(parquet, index, start, stop, columns)

    def values() -> dict[str, list[object]]:
        asked.clear()
        reader = SplitReader(dataset.store, dataset.manifest(), "train")
        blocks = reader.read(0, 100, 400, np.arange(300)[::-1].copy())
        return {name: np.asarray(block.take(0, 300)).tolist() for name, block in blocks.items()}

    monkeypatch.setattr(seams.READER_READ_ROWS, noted)
    at_once = values()
    assert [len(columns) for columns in asked] == [6]
    decoded = 500 * (3 * 4 + 8 + 1 + 8)  # three numbers, a category as the tensor has it, label, id
    monkeypatch.setattr(seams.READER_AT_ONCE_BYTES, decoded - 1)
    assert values() == at_once
    assert [len(columns) for columns in asked] == [1] * 6
    monkeypatch.setattr(seams.READER_AT_ONCE_BYTES, decoded)
    assert (values() == at_once, len(asked)) == (True, 1)


def test_a_read_that_does_not_come_back_is_told_within_the_deadline(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    free, original = threading.Event(), SplitReader.read

    def hanging(self: SplitReader, group: int, start: int, stop: int, order: object) -> object:
        if self.place(group)[0].path.endswith("part-4.parquet"):
            free.wait(20)
        return original(self, group, start, stop, order)  # type: ignore[arg-type]

    monkeypatch.setattr(seams.SPLIT_READER_READ, hanging)
    reader = SplitReader(dataset.store, dataset.manifest(), "train")
    loader = Loader(reader, LoaderConfig(batch_rows=64, seed=3, lanes=24, deadline_s=0.3), rank=0, num_ranks=1)
    with pytest.raises(StorageError, match=r"row group 0 of data/d1/train/part-4\.parquet did not arrive within 0\.3 s; check the storage"):
        list(loader.epoch(0))
    assert not free.is_set()
    free.set()  # the control: the same reads, which now come back
    assert sum(batch.rows for batch in loader.epoch(0)) == ROWS


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_worker_processes_of_a_dataloader_are_refused_since_each_would_give_all_rows(dataset: Dataset, start: str) -> None:
    alone = DataLoader(_loader(dataset), batch_size=None)
    assert sorted(row for batch in alone for row in _ids(batch)) == list(range(ROWS))
    shared = DataLoader(_loader(dataset), batch_size=None, num_workers=2, multiprocessing_context=start)
    with pytest.raises(ConfigError, match="would yield every row once per worker"):
        list(shared)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, FILES)
    file = dataset.manifest().splits["train"].files[4]
    Path(dataset.store.path(file.path)).unlink()
    with pytest.raises(DatasetError, match=r"part-4\.parquet cannot be read"):
        list(_loader(dataset).epoch(0))


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, FILES)
    path = Path(dataset.store.path(dataset.manifest().splits["train"].files[0].path))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DatasetError, match=r"part-0\.parquet cannot be read"):
        list(_loader(dataset).epoch(0))


def test_a_row_group_of_another_size_is_named(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, FILES)
    path = Path(dataset.store.path(dataset.manifest().splits["train"].files[4].path))
    table = pq.read_table(path)
    pq.write_table(table.slice(0, 400), path)
    with pytest.raises(DatasetError, match="has 400 rows, the manifest says 500"):
        list(_loader(dataset).epoch(0))


def test_an_unknown_split_is_refused_with_those_there_are(dataset: Dataset) -> None:
    with pytest.raises(DatasetError, match="no split 'tset'; it has train, validation"):
        SplitReader(dataset.store, dataset.manifest(), "tset")


def test_a_tensor_of_no_columns_has_rows_of_no_values(dataset: Dataset) -> None:
    manifest = dataset.manifest()
    without = tuple(spec.model_copy(update={"fields": ()}) if spec.name == "categorical" else spec for spec in manifest.tensors)
    reader = SplitReader(dataset.store, manifest.model_copy(update={"tensors": without}), "train")
    batches = list(Loader(reader, LoaderConfig(batch_rows=64, seed=3, lanes=24), rank=0, num_ranks=1).epoch(0))
    assert {tuple(batch.tensors["categorical"].shape) for batch in batches[:-1]} == {(64, 0)}
    assert sorted(row for batch in batches for row in _ids(batch)) == list(range(ROWS))


def _large(folder: Path) -> tuple[Dataset, Loader]:
    """Row groups and batches whose arrays pass through the pool of memory, several of them in the making at once."""
    dataset = write_dataset(folder, [[30_000, 25_000], [28_000]])
    reader = SplitReader(dataset.store, dataset.manifest(), "train")
    return dataset, Loader(reader, LoaderConfig(batch_rows=9_000, seed=3, lanes=5, reader_threads=3, deadline_s=20), rank=0, num_ranks=1)


def _wrong_rows(dataset: Dataset, batches: list[Batch]) -> int:
    paths = [dataset.store.path(file.path) for file in dataset.manifest().splits["train"].files]
    table = pq.ParquetDataset(paths).read().to_pandas().set_index("row_id")
    expected = [torch.tensor(table.reindex(_ids(batch))[list(NUMERIC)].to_numpy()) for batch in batches]
    return sum(int((batch.tensors["numeric"] != values).any(dim=1).sum()) for batch, values in zip(batches, expected, strict=True))


def test_batches_that_are_kept_do_not_change_when_later_ones_are_made(tmp_path: Path) -> None:
    dataset, loader = _large(tmp_path)
    kept = [batch for _ in range(2) for batch in loader.epoch(0)]
    assert sorted(row for batch in kept for row in _ids(batch)) == sorted([*range(83_000)] * 2)
    assert _wrong_rows(dataset, kept) == 0


def test_control_memory_that_is_used_again_too_early_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, loader = _large(tmp_path)
    only: dict[int, np.ndarray] = {}

    def empty(_: object, shape: tuple[int, ...], dtype: object) -> np.ndarray:
        made = only.setdefault(threading.get_ident(), np.empty(1 << 22, dtype=np.uint8))
        kind = np.dtype(dtype)  # type: ignore[call-overload]
        return made[:math.prod(shape) * kind.itemsize].view(kind).reshape(shape)

    monkeypatch.setattr(seams.BUFFER_POOL_EMPTY, empty)
    assert _wrong_rows(dataset, list(loader.epoch(0))) > 0
