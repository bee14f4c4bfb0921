"""Seconds to a target loss when one of two ranks is four times as slow: stale synchronous training beside exact training.

    uv run python -m benchmarks.staleness

The slow rank computes each gradient four times, which is what a machine of a quarter of the speed would take. Both sides train the same
network from the same weights on the same steps, with the same learning rate; they alternate. A loss is the mean over a window of steps,
in the order in which they ended; the target is the loss that exact training has after a part of its steps. The clock runs from a side's
first step, on ranks that have started.

``time_ratio_to_ring`` is the median over the rounds of our seconds over the ring's.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.recovery import PREPARE
from benchmarks.support.report import print_result
from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.conf.loading import parse_config
from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.events.writer import Record, read_events
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.strategies.relaxed.stale_sync import StaleSyncStrategy
from sparkring.pipelines.training.strategies.replica import Replica
from sparkring.pipelines.training.strategies.strategy import DataParallelStrategy
from sparkring.pipelines.training.train_rank import train_rank

ROUNDS, SLOWER, BOUND, RANKS = 5, 4, 8, 2
FILES = ([20_000, 20_000],)
BATCH_ROWS, HIDDEN, EPOCHS, LANES = 256, [1024, 512], 2, 24
WINDOW, TARGET_AT = 40, 0.6
"""Steps of the mean loss; the share of exact training's steps after which its loss is the target."""
SIDES: dict[str, dict[str, Any]] = {"ring": {"kind": "exact"}, "stale_sync": {"kind": "stale_sync", "bound": BOUND}}


def slowed(context: RankContext, job: dict[str, Any]) -> None:
    """Train; rank 1 computes each gradient several times."""
    with patch.object(DataParallelStrategy, "step", _after_more_work(DataParallelStrategy.step, context)), \
            patch.object(StaleSyncStrategy, "learn", _after_more_work(StaleSyncStrategy.learn, context)):
        train_rank(context, job)


def _after_more_work(done: Callable[..., Any], context: RankContext) -> Callable[..., Any]:
    def slow(strategy: Replica, batch: Batch, *args: Any) -> Any:
        if context.rank == 1 and batch.rows:
            parameters = list(strategy.model.parameters())
            for _ in range(SLOWER - 1):
                loss = strategy.loss_sum(strategy.model(**strategy.inputs.of(batch.tensors, epoch=batch.epoch)),
                                         *strategy.inputs.targets(batch.tensors))
                torch.autograd.grad(loss, parameters)
        return done(strategy, batch, *args)

    return slow


def trained(folder: Path, dataset: Path, strategy: dict[str, Any]) -> list[Record]:
    """The step records of one run, in the order in which the steps ended; one for each step."""
    config = parse_config({
        "name": "staleness", "workspace": str(folder), "run": "first", "prepare": PREPARE, "dataset_url": str(dataset),
        "model": {"hidden": HIDDEN}, "train": {
            "num_ranks": RANKS, "epochs": EPOCHS, "batch_rows": BATCH_ROWS, "lanes": LANES, "strategy": strategy,
            "checkpoint_steps": 10_000, "optimizer": {"name": "sgd", "lr": 0.02, "schedule": "constant"}}}, origin="benchmark")
    job = TrainJob(config=config, dataset_url=str(dataset), dataset_version=1, run_url=str(folder / "run"), generation=0, lanes=LANES)
    run_on_ranks(RANKS, slowed, job.model_dump(mode="json"), deadline_s=600)
    steps = [record for record in read_events(str(folder / "run")) if record["event"] == "step" and record["loss"] is not None]
    own = [record for record in steps if strategy["kind"] == "stale_sync" or record["rank"] == 0]
    return sorted(own, key=lambda record: float(record["time"]))


def seconds_to(target: float, steps: Sequence[Record]) -> float:
    """Seconds from the first step's beginning until the mean loss of a window of steps is at most the target."""
    losses = smooth(steps)
    reached = int(np.argmax(losses <= target))
    if losses[reached] > target:
        raise SystemExit(f"a side did not reach a loss of {target:.4f}: its lowest is {losses.min():.4f}")
    first = steps[0]
    began = first["time"] - first["compute_s"] - first["comm_s"]
    return float(steps[reached + WINDOW - 1]["time"] - began)


def smooth(steps: Sequence[Record]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The mean loss of each window of steps."""
    return np.convolve([record["loss"] for record in steps], np.ones(WINDOW) / WINDOW, mode="valid")


def main() -> None:
    """Train by both sides in turn; print the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in SIDES}
    final: dict[str, list[float]] = {name: [] for name in SIDES}
    staleness: list[int] = []
    with tempfile.TemporaryDirectory(prefix="sparkring-staleness-") as name:
        dataset = Path(name) / "dataset"
        write_dataset(dataset, FILES)
        for number in range(options.rounds):
            runs = {side: trained(Path(name) / f"{side}-{number}", dataset, strategy) for side, strategy in SIDES.items()}
            losses = smooth(runs["ring"])
            target = float(losses[int(TARGET_AT * len(losses))])
            for side, steps in runs.items():
                found[side].append(seconds_to(target, steps))
                final[side].append(float(smooth(steps)[-1]))
            staleness += [record["staleness"] for record in runs["stale_sync"]]
            print(f"round {number + 1} of {options.rounds}: loss {target:.4f} after "
                  + ", ".join(f"{seconds[-1]:.2f} s ({side})" for side, seconds in found.items()), flush=True)
    ratios = [ours / theirs for ours, theirs in zip(found["stale_sync"], found["ring"], strict=True)]
    print_result(
        [{"strategy": side, "s to the target": round(statistics.median(found[side]), 2),
          "last loss": round(statistics.median(final[side]), 4)} for side in SIDES],
        {"time_ratio_to_ring": statistics.median(ratios), "staleness_max": max(staleness), "bound": BOUND,
         "staleness_mean": statistics.mean(staleness), "loss_ring": statistics.median(final["ring"]),
         "loss_stale_sync": statistics.median(final["stale_sync"])})


if __name__ == "__main__":
    main()
