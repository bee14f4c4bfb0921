"""Seconds to a target loss on two hosts whose link has 100 Mb/s: gradients in bf16 with error feedback beside plain ones.

    sudo .venv/bin/python -m benchmarks.compression            (network namespaces need root and iproute2: harness/hosts.py)

All sides train the same network from the same weights on the same steps; they alternate. Plain gradients travel by Horovod and by our own
connections. A loss is the mean over a window of steps; the target is the one that plain gradients have after a part of theirs. The clock
runs from a side's first step, on ranks that have started.

``best_speedup`` is the median over the rounds of the seconds of the faster plain side over ours.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.recovery import PREPARE
from benchmarks.staleness import LANES, TARGET_AT, seconds_to, smooth
from benchmarks.support.report import print_result
from harness.datasets import write_dataset
from harness.host_ranks import run_on_hosts
from harness.hosts import Host, hosts, why_no_hosts
from sparkring.conf.loading import parse_config
from sparkring.pipelines.training.events.writer import Record, read_events
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.spark_jobs.launch.rank import environment as rank_environment

ROUNDS, MBIT = 3, 100.0
FILES = ([20_000, 20_000],)
BATCH_ROWS, HIDDEN = 256, [1024, 512]
SIDES: dict[str, dict[str, Any]] = {"horovod": {}, "sockets": {"allreduce": "auto"}, "bf16": {"allreduce": "auto", "wire": "bf16"}}
PLAIN = ("horovod", "sockets")


def trained(made: Sequence[Host], folder: Path, dataset: Path, ring: dict[str, Any]) -> list[Record]:
    """Rank 0's step records of one run on the hosts."""
    config = parse_config({
        "name": "compression", "workspace": str(folder), "run": "first", "prepare": PREPARE, "dataset_url": str(dataset),
        "model": {"hidden": HIDDEN}, "train": {
            "num_ranks": len(made), "epochs": 1, "batch_rows": BATCH_ROWS, "lanes": LANES, "ring": ring, "checkpoint_steps": 10_000,
            "optimizer": {"name": "sgd", "lr": 0.02, "schedule": "constant"}}}, origin="benchmark")
    job = TrainJob(config=config, dataset_url=str(dataset), dataset_version=1, run_url=str(folder / "run"), generation=0, lanes=LANES)
    run_on_hosts(made, "sparkring.pipelines.training.train_rank:train_rank", job.model_dump(mode="json"), deadline_s=600)
    return [record for record in read_events(str(folder / "run")) if record["event"] == "step" and record["rank"] == 0]


def main() -> None:
    """Train by all sides in turn; print the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    reason = why_no_hosts()
    if reason:
        raise SystemExit(f"benchmarks.compression: {reason}.")
    os.environ.update(rank_environment.MEMORY)
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    last: dict[str, list[float]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as name, hosts(Path(name), "alpha", "beta") as made:
        for host in made:
            host.link.limit(MBIT)
        dataset = Path(name) / "dataset"
        write_dataset(dataset, FILES)
        for number in range(options.rounds):
            runs = {side: trained(made, Path(name) / f"{side}-{number}", dataset, ring) for side, ring in SIDES.items()}
            losses = smooth(runs["horovod"])
            target = float(losses[int(TARGET_AT * len(losses))])
            for side, steps in runs.items():
                found[side].append(seconds_to(target, steps))
                last[side].append(float(smooth(steps)[-1]))
            print(f"round {number + 1} of {options.rounds}: loss {target:.4f} after "
                  + ", ".join(f"{seconds[-1]:.1f} s ({side})" for side, seconds in found.items()), flush=True)
    speedups = [min(plain) / ours for *plain, ours in zip(*(found[side] for side in (*PLAIN, "bf16")), strict=True)]
    print_result(
        [{"gradients": side, "s to the target": f"{statistics.median(found[side]):.1f}",
          "last loss": f"{statistics.median(last[side]):.4f}"} for side in SIDES],
        {"best_speedup": statistics.median(speedups), "loss_plain": statistics.median(last["horovod"]),
         "loss_bf16": statistics.median(last["bf16"])})


if __name__ == "__main__":
    main()
