"""Preparing the next batch while the one before it is in use: in order, one ahead, and to an end whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest
import torch

from harness.datasets import write_dataset
from sparkring.errors import DatasetError
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Batch, Loader, LoaderConfig, Prepare
from sparkring.pipelines.data.loading.one_ahead import one_ahead
from sparkring.pipelines.data.loading.reader import SplitReader

PATIENCE_S = 30.0


def made(*results: int | Exception) -> Iterator[Future[int]]:
    """Results of other threads, all there."""
    for result in results:
        future: Future[int] = Future()
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
        yield future


class Preparing:
    """Notes which numbers have been begun and which are prepared; preparing one may be held up."""

    def __init__(self, *, held: int | None = None) -> None:
        self.begun: list[int] = []
        self.threads: set[str] = set()
        self.holding, self.release = threading.Event(), threading.Event()
        self._held, self._changed, self._prepared = held, threading.Condition(), set[int]()

    def __call__(self, number: int) -> int:
        self.begun.append(number)
        self.threads.add(threading.current_thread().name)
        if number == self._held:
            self.holding.set()
            assert self.release.wait(PATIENCE_S)
        with self._changed:
            self._prepared.add(number)
            self._changed.notify_all()
        return number * 10

    def awaits(self, number: int, within_s: float = PATIENCE_S) -> bool:
        """Whether a number is prepared, at least in the end."""
        with self._changed:
            return self._changed.wait_for(lambda: number in self._prepared, within_s)


def test_all_results_come_prepared_and_in_order() -> None:
    prepare = Preparing()
    assert list(one_ahead(made(*range(7)), prepare)) == [0, 10, 20, 30, 40, 50, 60]
    assert prepare.begun == list(range(7))
    assert len(prepare.threads) == 1
    assert threading.current_thread().name not in prepare.threads
    assert list(one_ahead(made(), prepare)) == []


def test_the_next_one_is_prepared_while_one_is_in_use_and_no_further_one_is_begun() -> None:
    prepare = Preparing()
    with closing(one_ahead(made(*range(5)), prepare)) as results:
        for number in range(4):
            assert next(results) == number * 10
            assert prepare.awaits(number + 1), "the one in use was not given back, and nothing else was asked for"
            assert prepare.begun == list(range(number + 2))


def test_control_without_a_thread_nothing_is_prepared_meanwhile() -> None:
    prepare = Preparing()
    results = (prepare(future.result()) for future in made(*range(5)))
    assert next(results) == 0
    assert not prepare.awaits(1, within_s=0.0)


@pytest.mark.parametrize("failing", ["result", "preparation"])
def test_an_error_comes_after_all_that_came_before_it(failing: str) -> None:
    def prepare(number: int) -> int:
        if failing == "preparation" and number == 2:
            raise ValueError("number 2")
        return number

    used: list[int] = []
    results = one_ahead(made(0, 1, ValueError("number 2") if failing == "result" else 2, 3), prepare)
    with pytest.raises(ValueError, match="number 2"):
        used.extend(results)
    assert [*used, *results] == [0, 1]


def test_who_stops_does_not_wait_for_the_one_that_is_being_prepared() -> None:
    prepare = Preparing(held=1)
    results = one_ahead(made(*range(5)), prepare)
    assert next(results) == 0
    assert prepare.holding.wait(PATIENCE_S)
    results.close()
    prepare.release.set()
    assert prepare.awaits(1)
    assert prepare.begun == [0, 1]


# -- as the loader uses it ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_dataset(tmp_path_factory.mktemp("ahead"), ([100, 50], [7], [0, 33], [1], [300]))


def loaded(dataset: Dataset, prepare: Prepare | None, *, first_step: int = 0) -> Generator[Batch]:
    config = LoaderConfig(batch_rows=64, seed=3, lanes=24, reader_threads=2, deadline_s=20)
    reader = SplitReader(dataset.store, dataset.manifest(), "train")
    return Loader(reader, config, rank=0, num_ranks=1, prepare=prepare).epoch(1, first_step=first_step)


def test_a_loader_gives_the_same_batches_whether_they_are_prepared_ahead_or_not(dataset: Dataset) -> None:
    begun: list[int] = []
    taken: list[tuple[int, str]] = []

    def prepare(batch: Batch) -> Callable[[], Batch]:
        begun.append(batch.step)

        def take() -> Batch:
            taken.append((batch.step, threading.current_thread().name))
            return batch

        return take

    plain, ahead = list(loaded(dataset, None, first_step=2)), list(loaded(dataset, prepare, first_step=2))
    assert [batch.step for batch in ahead] == [batch.step for batch in plain] == [2, 3, 4, 5, 6, 7]
    for one, other in zip(plain, ahead, strict=True):
        assert one.tensors.keys() == other.tensors.keys()
        assert all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())
    assert begun == [2, 3, 4, 5, 6, 7]
    assert taken == [(step, threading.current_thread().name) for step in begun], "by the thread that uses them"


def test_a_loader_that_is_closed_early_prepares_no_more(dataset: Dataset) -> None:
    prepare = Preparing()
    with closing(loaded(dataset, lambda batch: lambda: (prepare(batch.step), batch)[1])) as batches:
        assert next(batches).step == 0
    alive = {thread.name for thread in threading.enumerate() if thread.name.startswith("sparkring-copier")}
    for thread in threading.enumerate():
        if thread.name in alive:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def test_a_damaged_file_is_named_where_batches_are_prepared_ahead(tmp_path: Path) -> None:
    damaged = write_dataset(tmp_path, ([640],))
    (path,) = tmp_path.glob("data/*/train/*.parquet")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DatasetError, match=path.name):
        list(loaded(damaged, lambda batch: lambda: batch))
