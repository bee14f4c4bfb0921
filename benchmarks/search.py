"""Seconds of a search of 16 trials: rings of one rank at once beside one trial after another on all ranks.

    uv run python -m benchmarks.search

Both sides try the same random values, without pruning, in the same Spark session of two slots; they alternate. ``pruned_share`` is the
share of trials that a search with the median pruner ends early.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.recovery import PREPARE
from benchmarks.support.report import print_result
from harness.datasets import write_dataset
from sparkring.conf.loading import parse_config
from sparkring.conf.schema import SparkConfig
from sparkring.spark_jobs.searching.search import SearchResult, search
from sparkring.spark_jobs.spark.session import spark_session

ROUNDS, TRIALS, SLOTS, EPOCHS = 3, 16, 2, 4
FILES = ([20_000, 20_000],)
SIDES: dict[str, dict[str, int]] = {"at once": {"num_ranks": 1, "at_once": SLOTS}, "in turn": {"num_ranks": SLOTS, "at_once": 1}}


def searched(folder: Path, dataset: Path, spark: SparkSession, *, num_ranks: int, at_once: int, **keys: Any) -> SearchResult:
    """One search in a workspace of its own."""
    config = parse_config({
        "name": "search", "workspace": str(folder), "prepare": PREPARE, "dataset_url": str(dataset), "model": {"hidden": [256, 128]},
        "train": {"num_ranks": num_ranks, "epochs": EPOCHS, "batch_rows": 256, "lanes": 24},
        "search": {"trials": TRIALS, "at_once": at_once, "sampler": "random", "pruner": "none", "space": {
            "train.optimizer.lr": {"low": 1e-5, "high": 0.1, "log": True}, "train.optimizer.weight_decay": {"low": 0.0, "high": 0.1}},
            **keys}}, origin="benchmark")
    result = search(config, spark=spark)
    failed = [trial.error for trial in result.trials if trial.state == "failed"]
    if failed:
        raise SystemExit(f"{len(failed)} trials failed; the first: {failed[0]}")
    return result


def main() -> None:
    """Search by both sides in turn; print the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="sparkring-search-") as name:
        write_dataset(Path(name) / "dataset", FILES)
        spark = spark_session(SparkConfig(master=f"local[{SLOTS}]"), app_name="benchmarks.search")
        try:
            searched(Path(name) / "warm", Path(name) / "dataset", spark, **SIDES["at once"], trials=2)
            for number in range(options.rounds):
                for side, layout in SIDES.items():
                    result = searched(Path(name) / f"{side}-{number}", Path(name) / "dataset", spark, **layout)
                    seconds[side].append(result.seconds)
                    print(f"round {number + 1} of {options.rounds}: {side} {result.seconds:.1f} s", flush=True)
            pruned = searched(Path(name) / "pruned", Path(name) / "dataset", spark, **SIDES["at once"], pruner="median")
        finally:
            spark.stop()
    ratios = [turn / once for once, turn in zip(seconds["at once"], seconds["in turn"], strict=True)]
    print_result([{"side": side, "ranks a trial": layout["num_ranks"], "trials at once": layout["at_once"],
                   "seconds": round(statistics.median(seconds[side]), 1)} for side, layout in SIDES.items()],
                 {"speedup": statistics.median(ratios), "pruned_share": pruned.pruned_share, "pruned_seconds": pruned.seconds,
                  "trials": TRIALS})


if __name__ == "__main__":
    main()
