"""Memory that is used again, and only once nothing looks at it any more."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from sparkring.pipelines.data.loading.buffer_pool import SMALLEST, BufferPool

ROWS = SMALLEST // 8 + 1


def address(array: np.ndarray) -> int:
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


@pytest.mark.parametrize("largest", [98_304, 114_688, 12_582_912])
def test_sizes_share_memory_up_to_a_quarter(largest: int) -> None:
    pool = BufferPool()
    step = 1 << (largest.bit_length() - 3)
    array = pool.empty((largest,), np.uint8)
    where = address(array)
    del array
    assert address(pool.empty((largest - step,), np.uint8)) != where, "the next smaller size has memory of its own"
    for size in (largest, largest - step // 2, largest - step + 1):
        shared = pool.empty((size,), np.uint8)
        assert (address(shared), shared.nbytes) == (where, size)
        del shared


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
