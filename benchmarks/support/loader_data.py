"""The files that ``benchmarks.loader`` reads: written with Arrow as Spark writes them, with Petastorm's metadata and our manifest."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from harness.loader_files import commit, files_of
from sparkring.pipelines.data.dataset.row_schema import DataField, ImageSpec, TensorSpec

COLUMNS = tuple(f"c{number:02d}" for number in range(33))
SIDE, LENGTH = 28, 512
_generator = np.random.default_rng(1)


def write_all(folder: Path) -> None:
    """Commit a dataset of each kind under ``folder``."""
    for kind, write in KINDS.items():
        write(folder / kind)


def write_table(folder: Path) -> None:
    """5 M rows in 8 files of 12 row groups, 7 MB each."""
    def rows(count: int) -> pa.Table:
        return pa.table({name: _generator.standard_normal(count).astype(np.float32) for name in COLUMNS})

    fields = tuple(DataField(name=name, dtype="float32") for name in COLUMNS)
    commit(folder, fields, TensorSpec(name="x", dtype="float32", fields=COLUMNS), files_of(folder, rows, files=8, groups=12, rows=52_084))


def write_images(folder: Path) -> None:
    """24,576 smooth grey images as PNG."""
    import cv2

    def encoded(image: np.ndarray) -> bytes:
        return bytes(cv2.imencode(".png", image)[1])

    def rows(count: int) -> pa.Table:
        small = _generator.integers(0, 256, (count, 7, 7), dtype=np.uint8)
        images = (cv2.resize(one, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC) for one in small)
        return pa.table({"x": pa.array([encoded(image) for image in images], pa.binary())})

    field = DataField(name="x", dtype="uint8", shape=(SIDE, SIDE), codec="png")
    spec = TensorSpec(name="x", dtype="float32", fields=("x",), stacked=False, shape=(1, SIDE, SIDE),
                      image=ImageSpec(mean=(0.5,), std=(0.25,)))
    commit(folder, (field,), spec, files_of(folder, rows, files=4, groups=24, rows=256))


def write_tokens(folder: Path) -> None:
    """49,152 sequences as .npy cells."""
    def encoded(tokens: np.ndarray) -> bytes:
        cell = io.BytesIO()
        np.save(cell, tokens)
        return cell.getvalue()

    def rows(count: int) -> pa.Table:
        tokens = _generator.integers(0, 256, (count, LENGTH), dtype=np.int32)
        return pa.table({"x": pa.array([encoded(row) for row in tokens], pa.binary())})

    field = DataField(name="x", dtype="int32", shape=(LENGTH,), codec="ndarray")
    spec = TensorSpec(name="x", dtype="int64", fields=("x",), stacked=False, shape=(LENGTH,))
    commit(folder, (field,), spec, files_of(folder, rows, files=4, groups=24, rows=512))


KINDS: dict[str, Callable[[Path], None]] = {"table": write_table, "images": write_images, "tokens": write_tokens}
