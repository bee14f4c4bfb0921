"""Rows a second from Parquet files to shuffled torch tensors, beside Petastorm's loaders and a plain, unshuffled Arrow scan.

    uv run python -m benchmarks.loader

Three kinds of row: 33 float32 columns to one tensor (rows, 33), 28 x 28 PNG images, sequences of 512 tokens. All sides read the
same files, each in a fresh process and in turn, for several rounds; a figure is the median over the rounds of the ratio of two
sides' rates. Petastorm's rate is that of the better of its thread and process pools, of a table on half of the files. A rate
runs from the making of the loader, with everything imported, to its last batch: Petastorm gives none until its shuffling queue
is filled, so a clock that starts with the first batch would leave out most of its work. The budget is what a rank holds after
its imports plus ``LoaderConfig.memory_mb``.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.support.loader_data import COLUMNS, KINDS, write_all
from benchmarks.support.report import print_result
from harness.process_memory import peak_rss_mb

ROUNDS = 3
THREADS = 2
BATCH = {"table": 4096, "images": 256, "tokens": 256}
MEMORY_MB = 768.0


def _sparkring(folder: Path, kind: str) -> Iterator[int]:
    from sparkring.pipelines.data.dataset.versions import Dataset
    from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
    from sparkring.pipelines.data.loading.reader import SplitReader

    dataset = Dataset(str(folder / kind))
    reader = SplitReader(dataset.store, dataset.manifest(), "train", tensors=["x"])
    config = LoaderConfig(batch_rows=BATCH[kind], seed=1, lanes=24, reader_threads=THREADS, memory_mb=MEMORY_MB)
    for batch in Loader(reader, config, rank=0, num_ranks=1).epoch(0):
        yield len(batch.tensors["x"])


def _arrow(folder: Path, kind: str) -> Iterator[int]:
    """Row-major tensors of a scan with all threads; tables only."""
    import pyarrow.dataset
    import torch

    files = sorted(map(str, (folder / kind).rglob("*.parquet")))
    scanner = pyarrow.dataset.dataset(files).scanner(columns=list(COLUMNS), batch_size=1 << 16, use_threads=True)
    for record in scanner.to_batches():
        rows = np.empty((record.num_rows, len(COLUMNS)), dtype=np.float32)
        for place, column in enumerate(record.columns):
            rows[:, place] = column.to_numpy()
        yield len(torch.from_numpy(rows))


def _petastorm(folder: Path, kind: str, pool: str) -> Iterator[int]:
    import warnings

    import torch
    from petastorm import make_batch_reader, make_reader
    from petastorm.pytorch import BatchedDataLoader, DataLoader

    warnings.simplefilter("ignore")
    files = sorted((folder / kind).rglob("*.parquet"))
    options = {"reader_pool_type": pool, "workers_count": THREADS, "num_epochs": 1, "shuffle_row_groups": True}
    if kind == "table":
        reader = make_batch_reader([file.as_uri() for file in files[:4]], schema_fields=list(COLUMNS), **options)
        with BatchedDataLoader(reader, batch_size=BATCH[kind], shuffling_queue_capacity=100_000) as loader:
            for batch in loader:
                yield len(torch.stack([batch[name] for name in COLUMNS], dim=1))
        return
    reader = make_reader(files[0].parent.as_uri(), schema_fields=["x"], **options)
    with DataLoader(reader, batch_size=BATCH[kind], shuffling_queue_capacity=5_000) as loader:
        for batch in loader:
            yield len(batch["x"])


SIDES: dict[str, Callable[[Path, str], Iterator[int]]] = {
    "sparkring": _sparkring, "arrow scan": _arrow,
    **{f"petastorm, {pool} pool": partial(_petastorm, pool=pool) for pool in ("thread", "process")}}


def _rate(batches: Iterable[int]) -> dict[str, float]:
    """Rows a second, and the most memory that the process ever held, beside what its imports took."""
    import cv2  # noqa: F401
    import petastorm.pytorch  # noqa: F401
    import pyarrow.dataset  # noqa: F401

    import sparkring.pipelines.data.loading.loader  # noqa: F401 - all sides start with all imports

    before = peak_rss_mb()
    began = time.perf_counter()
    rows = sum(batches)
    return {"rows_per_s": rows / (time.perf_counter() - began), "before_mb": before,
            "peak_mb": peak_rss_mb()}


def measure(side: str, folder: Path, kind: str) -> dict[str, Any]:
    """One side in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.loader", side, str(folder), kind]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
    measured: dict[str, Any] = json.loads(output.splitlines()[-1])
    print(f"{kind}: {side} {measured['rows_per_s']:,.0f} rows/s, peak {measured['peak_mb']:.0f} MB", flush=True)
    return measured


def _ratios(rounds: list[dict[str, dict[str, Any]]], *peers: str) -> float:
    """Median over the rounds of our rate over the best peer's."""
    return statistics.median(one["sparkring"]["rows_per_s"] / max(one[peer]["rows_per_s"] for peer in peers) for one in rounds)


def main() -> None:
    """Measure all kinds and print."""
    petastorm = [name for name in SIDES if name.startswith("petastorm")]
    table, seen = [], {}
    with tempfile.TemporaryDirectory(prefix="sparkring-loader-") as name:
        write_all(Path(name))
        for kind in KINDS:
            sides = [side for side in SIDES if side != "arrow scan" or kind == "table"]
            seen[kind] = [{side: measure(side, Path(name), kind) for side in sides} for _ in range(ROUNDS)]
            table += [{"rows": kind, "side": side, "rows/s": f"{statistics.median(one[side]['rows_per_s'] for one in seen[kind]):,.0f}",
                       "peak MB": f"{max(one[side]['peak_mb'] for one in seen[kind]):.0f}"} for side in sides]
    ours = [one["sparkring"] for rounds in seen.values() for one in rounds]
    print_result(table, {
        "rows_per_s": statistics.median(one["sparkring"]["rows_per_s"] for one in seen["table"]),
        "ratio_to_petastorm": _ratios(seen["table"], *petastorm), "ratio_to_arrow": _ratios(seen["table"], "arrow scan"),
        "images_ratio_to_petastorm": _ratios(seen["images"], *petastorm), "tokens_ratio_to_petastorm": _ratios(seen["tokens"], *petastorm),
        "peak_rss_mb": max(one["peak_mb"] for one in ours), "rss_budget_mb": max(one["before_mb"] for one in ours) + MEMORY_MB})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(_rate(SIDES[sys.argv[1]](Path(sys.argv[2]), sys.argv[3]))))
    else:
        main()
