"""The memory that a loader states is what its process takes at most: tables, images, row groups that do not fit, one rank with all lanes.

Each figure is of a process of its own, taken by the kernel: what it held at most after it had read a small dataset, so that modules and
pools are loaded. The control is the same loader whose budget is out of reach.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from harness.loader_files import commit, files_of
from sparkring.pipelines.data.dataset.row_schema import DataField, ImageSpec, TensorSpec
from tests.support.images import encoded
from tests.support.loader_memory import Measured

MB = 1 << 20
COLUMNS = tuple(f"c{number:02d}" for number in range(33))
ROOT = Path(__file__).resolve().parents[2]


def _table(folder: Path, groups: int, group_mb: float) -> None:
    """Row groups of 33 float32 columns."""
    generator, rows = np.random.default_rng(2), int(group_mb * MB / (4 * len(COLUMNS)))

    def made(count: int) -> pa.Table:
        return pa.table(dict.fromkeys(COLUMNS, generator.standard_normal(count).astype(np.float32)))

    commit(folder, tuple(DataField(name=name, dtype="float32") for name in COLUMNS), TensorSpec(name="x", dtype="float32", fields=COLUMNS),
           files_of(folder, made, files=groups, groups=1, rows=rows))


def _images(folder: Path, groups: int, group_mb: float) -> None:
    """Row groups of noisy images, which do not get smaller as PNG files."""
    generator = np.random.default_rng(3)
    cells = [encoded(generator.integers(0, 256, (96, 96, 3), dtype=np.uint8)) for _ in range(40)]
    rows = int(group_mb * MB / len(cells[0]))

    def made(count: int) -> pa.Table:
        return pa.table({"image": pa.array([cells[number % len(cells)] for number in range(count)], pa.binary())})

    field = DataField(name="image", dtype="uint8", shape=(96, 96, 3), codec="png")
    spec = TensorSpec(name="image", dtype="float32", fields=("image",), stacked=False, shape=(3, 96, 96),
                      image=ImageSpec(mean=(0.5,) * 3, std=(0.25,) * 3))
    commit(folder, (field,), spec, files_of(folder, made, files=groups, groups=1, rows=rows))


def _measured(folder: Path, *, memory_mb: float, batch_rows: int) -> Measured:
    """Memory of a process that reads an epoch."""
    command = [sys.executable, "-m", "tests.support.loader_memory", str(folder), str(memory_mb), str(batch_rows)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return Measured(**json.loads(ended.stdout.splitlines()[-1]))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("write", "batch_rows", "groups", "group_mb", "memory_mb"), [
    pytest.param(_table, 4096, 12, 16, 96, id="a table as prepare writes it"),
    pytest.param(_table, 4096, 6, 48, 144, id="a table of larger row groups", marks=pytest.mark.nightly),
    pytest.param(_images, 16, 12, 24, 144, id="images", marks=pytest.mark.nightly),
    pytest.param(_table, 4096, 6, 256, 768, id="a table of row groups of which three do not fit", marks=pytest.mark.nightly)])
def test_a_loader_keeps_to_its_memory_whatever_the_row_groups(tmp_path: Path, write: Callable[[Path, int, float], None], batch_rows: int,
                                                              groups: int, group_mb: float, memory_mb: float) -> None:
    write(tmp_path / "large", groups, group_mb)  # all of them are open from the first step on
    write(tmp_path / "small", 2, 1)
    kept, control = (_measured(tmp_path, memory_mb=budget, batch_rows=batch_rows) for budget in (memory_mb, 1e6))
    assert kept.rows == control.rows > 1000
    taken, without_budget = kept.peak_mb - kept.before_mb, control.peak_mb - control.before_mb
    assert taken <= memory_mb < without_budget, (taken, without_budget)
