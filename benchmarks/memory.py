"""Memory of a rank that reads all lanes alone (W = 1), beside its budget: small row groups, row groups of 264 MB, and images.

    uv run python -m benchmarks.memory

A budget is what the process holds after its imports plus ``LoaderConfig.memory_mb``. The open lanes of the large row groups
hold 3 GB, the budget allows 768 MB: the rest waits on local disk. ``control_mb``: the same with a budget that is never reached.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.support.loader_data import COLUMNS, write_images, write_table
from benchmarks.support.report import print_result
from harness.loader_files import commit, files_of
from harness.process_memory import peak_rss_mb
from sparkring.pipelines.data.dataset.row_schema import DataField, TensorSpec

MEMORY_MB = 768.0
LARGE_GROUPS, LARGE_ROWS = 12, 2_000_000


def write_large(folder: Path) -> None:
    """12 row groups of 2 M rows x 33 float32: 264 MB decoded each, 3.2 GB in all."""
    generator = np.random.default_rng(2)

    def rows(count: int) -> pa.Table:
        column = generator.standard_normal(count).astype(np.float32)
        return pa.table(dict.fromkeys(COLUMNS, column))

    fields = tuple(DataField(name=name, dtype="float32") for name in COLUMNS)
    commit(folder, fields, TensorSpec(name="x", dtype="float32", fields=COLUMNS),
           files_of(folder, rows, files=LARGE_GROUPS, groups=1, rows=LARGE_ROWS))


CASES = {"table": write_table, "large": write_large, "images": write_images}


def measure(folder: Path, memory_mb: float) -> dict[str, float]:
    """Read one epoch with one reader thread; memory after the imports and at most."""
    import cv2  # noqa: F401

    from sparkring.pipelines.data.dataset.versions import Dataset
    from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
    from sparkring.pipelines.data.loading.reader import SplitReader

    before = peak_rss_mb()
    dataset = Dataset(str(folder))
    reader = SplitReader(dataset.store, dataset.manifest(), "train")
    config = LoaderConfig(batch_rows=4096, seed=1, lanes=24, memory_mb=memory_mb)
    rows = sum(batch.rows for batch in Loader(reader, config, rank=0, num_ranks=1).epoch(0))
    assert rows == dataset.manifest().splits["train"].rows, "the epoch lost rows"
    return {"before_mb": before, "peak_mb": peak_rss_mb()}


def main() -> None:
    """Measure each case in a process of its own and print."""
    table: list[dict[str, str]] = []
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="sparkring-memory-") as name:
        for case, write in CASES.items():
            folder = Path(name) / case
            write(folder)
            limits = (MEMORY_MB, 1e6) if case == "large" else (MEMORY_MB,)
            for limit in limits:
                command = [sys.executable, "-m", "benchmarks.memory", str(folder), str(limit)]
                found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout)
                budget = found["before_mb"] + limit
                table.append({"rows": case, "peak MB": f"{found['peak_mb']:.0f}", "budget MB": f"{budget:.0f}" if limit < 1e6 else "none"})
                figures |= ({f"{case}_mb": found["peak_mb"], f"{case}_budget_mb": budget} if limit < 1e6
                            else {"control_mb": found["peak_mb"]})
    print_result(table, figures)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(Path(sys.argv[1]), float(sys.argv[2]))))
    else:
        main()
