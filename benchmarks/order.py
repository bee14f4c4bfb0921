"""The row order of 10^9 rows in 10^6 row groups: opening its manifest, jumping to a random step, and what a step costs.

    uv run python -m benchmarks.order

``open_s``: manifest bytes to a list of row counts. ``jump_s``: from there to the windows that a random step of a random epoch needs.
``step_us_*``: the arithmetic of one step of one rank (which rows of which lanes), beside that of a dataset of 10^6 rows.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.support.report import print_result
from harness.process_memory import peak_rss_mb
from sparkring.pipelines.data.dataset.manifest import DataFile, Manifest, Split, parse_manifest
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.data.dataset.row_schema import DataField, TensorSpec
from sparkring.pipelines.data.order.row_order import EpochOrder, group_rows

ROUNDS = 5
SIZES = {"large": (10_000, 100, 1_000), "small": (10, 10, 10_000)}
"""Files, row groups a file, rows a row group: 10^9 and 10^6 rows."""
BATCH, LANES = 4096, 24
STEPS = 2_000


def write_manifest(path: Path, files: int, groups: int, rows: int) -> None:
    """Write a manifest as ``prepare`` does; the files themselves are not needed."""
    listed = tuple(DataFile(path=f"data/0123456789abcdef/train/part-{number:05d}.parquet", bytes=groups * rows * 132, sha256="0" * 64,
                            row_groups=(rows,) * groups, row_group_bytes=(rows * 132,) * groups) for number in range(files))
    field = DataField(name="x", dtype="float32")
    path.write_bytes(Manifest(
        version=1, parent=None, data_id="0123456789abcdef", content_id="", recipe_id="", created_at="", code_version="", row_id="",
        label="", fields=(field,), tensors=(TensorSpec(name="x", dtype="float32", fields=("x",)),), recipe={}, source={},
        splits={"train": Split(files=listed, rows=files * groups * rows, rows_digest="0" * 16)},
        preprocessing=Preprocessing(numeric=(), categorical=(), train_rows=0)).to_json())


def measure(path: Path) -> dict[str, float]:
    """Open, jump and step, in this process."""
    began = time.perf_counter()
    manifest = parse_manifest(path.read_bytes(), origin=str(path))
    rows = group_rows([file.row_groups for file in manifest.splits["train"].files])
    opened = time.perf_counter()
    chance = np.random.default_rng()
    order = EpochOrder(rows, 1, int(chance.integers(1, 1000)), LANES)
    first = int(chance.integers(order.steps(BATCH) - STEPS)) if order.steps(BATCH) > STEPS else 0
    for lane in order.owned_lanes(0, 2):
        next(order.windows(lane, order.lane_slice(lane, first, BATCH)[0]))
    jumped = time.perf_counter()
    seconds = []
    for step in range(first, first + min(STEPS, order.steps(BATCH) - first)):
        start = time.perf_counter()
        for lane in order.owned_lanes(0, 2):
            order.lane_slice(lane, step, BATCH)
        seconds.append(time.perf_counter() - start)
    return {"open_s": opened - began, "jump_s": jumped - opened, "step_us": statistics.median(seconds) * 1e6,
            "rss_mb": peak_rss_mb()}


def main() -> None:
    """Measure both sizes in fresh processes, in turn, and print."""
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in SIZES}
    with tempfile.TemporaryDirectory(prefix="sparkring-order-") as folder:
        for name, size in SIZES.items():
            write_manifest(Path(folder) / name, *size)
        for _ in range(ROUNDS):
            for name in SIZES:
                command = [sys.executable, "-m", "benchmarks.order", str(Path(folder) / name)]
                rounds[name].append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout))
    figures = {name: {key: statistics.median(one[key] for one in found) for key in found[0]} for name, found in rounds.items()}
    table = [{"dataset": f"{name}: {files * groups:,} row groups, {files * groups * rows:,} rows",
              **{key: f"{value:.4g}" for key, value in figures[name].items()}} for name, (files, groups, rows) in SIZES.items()]
    large = figures["large"]
    print_result(table, {"open_s": large["open_s"], "jump_s": large["jump_s"], "rss_mb": large["rss_mb"],
                         "step_us_large": large["step_us"], "step_us_small": figures["small"]["step_us"]})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(Path(sys.argv[1]))))
    else:
        main()
