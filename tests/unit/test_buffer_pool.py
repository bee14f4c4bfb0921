"""Memory that is used again, and only once nothing looks at it any more."""

from __future__ import annotations

import gc

import numpy as np
import torch

from sparkring.pipelines.data.loading.buffer_pool import SMALLEST, BufferPool

ROWS = SMALLEST // 8 + 1


def address(array: np.ndarray) -> int:  # type: ignore[type-arg]
    return int(array.__array_interface__["data"][0])


def test_memory_is_used_again_when_an_array_is_gone() -> None:
    pool = BufferPool()
    first = pool.empty((ROWS, 2), np.float32)
    where = address(first)
    del first
    assert address(pool.empty((ROWS * 2,), np.float32)) == where


def test_memory_of_a_view_or_a_tensor_is_left_alone() -> None:
    pool = BufferPool()
    array = pool.empty((2, ROWS), np.float64)
    array[:] = 1.0
    view, tensor, where = array[1:].T[3:], torch.from_numpy(array)[:, 5:], address(array)
    del array
    gc.collect()
    other = pool.empty((2, ROWS), np.float64)
    other[:] = 2.0
    assert address(other) != where, "a pool that looks at the first array alone hands out memory that is read"
    assert view.mean() == 1.0
    assert tensor.mean() == 1.0
    del view
    assert address(pool.empty((2, ROWS), np.float64)) != where
    del tensor
    assert address(pool.empty((2, ROWS), np.float64)) == where


def test_sizes_share_memory_up_to_a_quarter() -> None:
    pool = BufferPool()
    for size in (ROWS * 8, ROWS * 8 + 4096, 10_000_000, 12_345_678):
        array = pool.empty((size,), np.uint8)
        where = address(array)
        del array
        assert address(pool.empty((size - size // 20,), np.uint8)) == where or size < 10_000_000
        assert pool.empty((size,), np.uint8).nbytes == size


def test_small_and_empty_arrays_do_not_pass_through_the_pool() -> None:
    pool = BufferPool()
    assert pool.empty((0, 3), np.int64).shape == (0, 3)
    assert pool.empty((4, 2), np.int16).flags.owndata


def test_clear_gives_up_what_lies_in_the_pool() -> None:
    pool = BufferPool()
    held = pool.empty((ROWS,), np.float64)
    pool.empty((ROWS,), np.float64)
    assert sum(map(len, pool._free.values())) == 1
    pool.clear()
    del held
    assert sum(map(len, pool._free.values())) == 0, "what was in use when the pool was cleared has come back to it"
