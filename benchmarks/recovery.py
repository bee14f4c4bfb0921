"""kill -9 a rank at random steps, again and again, while the ring goes 2 -> 1 -> 2 -> 3 -> 2 ...: what does it cost, and is anything lost?

    uv run python -m benchmarks.recovery                  20 kills, 3 of each peer
    uv run python -m benchmarks.recovery --kills 3 --peer-kills 0

The job runs undisturbed first, then under kills, one after the other evenly over the run, each at a random moment of a random rank. After
each kill Spark is taken to have as many slots as the next ring is wide, so that the run shrinks and grows by what the supervisor does in
life. ``resume_s`` runs from the kill to the end of the new ring's first step. Rows are looked for one by one, by the ids that the steps
recorded. The peers do the same training in their own way, with checkpoints as often (support/recovery_peers.py).

``checkpoint_interval`` is what the config asks for: no kill may cost more steps than that, also one while a checkpoint is being written.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

from pyspark.sql import SparkSession

from benchmarks.support.recovery_peers import INTERVAL, PEERS, PeerOutcome, run_peer
from benchmarks.support.report import Figure, print_result
from harness.datasets import write_dataset
from sparkring.cli.terminal.console import console_progress
from sparkring.conf.loading import parse_config
from sparkring.conf.schema import Config, SparkConfig
from sparkring.errors import Stopped
from sparkring.pipelines.data.stores.base import numbered
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.spark_jobs.chaos import ChaosResult, hardened, outcome
from sparkring.spark_jobs.fault_injection.faults import draw
from sparkring.spark_jobs.fault_injection.injector import FOLDER, train_rank_under_faults
from sparkring.spark_jobs.recovery.stop import StopRequest
from sparkring.spark_jobs.spark.progress import Progress
from sparkring.spark_jobs.spark.session import spark_session
from sparkring.spark_jobs.spark.task_resources import TaskResources
from sparkring.spark_jobs.train import train

KILLS = 20
WORLDS = (2, 1, 2, 3)
"""Ranks after so many kills, over and over."""
FILES = ([4000, 4000], [6000], [5000, 5000])
EPOCHS, BATCH_ROWS = 6, 48
LIMIT_MEDIAN_S, LIMIT_MAX_S = 8, 15
SAME = 1e-10
PREPARE = {
    "sources": {"rows": {"path": "none.csv", "columns": {"id": "bigint", "late": "int", "day": "timestamp", "km": "double"}}},
    "query": "SELECT id AS row_id, late, day, km FROM rows", "label": "late", "features": {"numeric": ["km"]},
    "split": {"column": "day", "validation_from": "2013-10-01T00:00:00Z", "test_from": "2013-11-01T00:00:00Z"}}
"""A config needs it; the dataset is written without Spark."""


def job(workspace: Path, dataset: Path, **train_settings: object) -> Config:
    """Training in float64 whose steps take some milliseconds, 500 an epoch."""
    return parse_config({
        "name": "recovery", "workspace": str(workspace), "run": "first", "prepare": PREPARE, "dataset_url": str(dataset),
        "model": {"hidden": [512, 256]},
        "train": {"epochs": EPOCHS, "batch_rows": BATCH_ROWS, "precision": "float64", "checkpoint_steps": INTERVAL, "lanes": 24,
                  "record_rows": True, "optimizer": {"name": "adam", "schedule": "constant"},
                  "recovery": {"wait_for_slots_s": 0.0}, **train_settings}}, origin="benchmark")


@contextmanager
def slots_as_kills_go(run_url: str) -> Iterator[None]:
    """Let the supervisor believe in as many slots as the ring is to have after the kills so far."""
    store = open_store(run_url)

    def slots(_: SparkSession, __: TaskResources | None = None) -> int:
        return WORLDS[len(numbered(store, FOLDER)) % len(WORLDS)]

    with patch("sparkring.spark_jobs.spark.slots.slots_of", slots), patch("sparkring.spark_jobs.launch.barrier.launcher.slots_of", slots):
        yield


def begin(config: Config, spark: SparkSession, progress: Progress) -> None:
    """Train as ``config`` says until there is a checkpoint: a run that has begun may go on with fewer ranks than it asks for."""
    stop, done = StopRequest(), threading.Event()

    def ask() -> None:
        while not done.wait(0.05):
            if Checkpoints(config.run_url).numbers():
                stop.ask("there is a checkpoint")
                return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        train(config, spark=spark, progress=progress, stop=stop)
    except Stopped:
        return
    finally:
        done.set()
        thread.join()
    raise AssertionError("the run was over before it could be stopped")


def measure(folder: Path, kills: int, seed: int, spark: SparkSession, progress: Progress) -> ChaosResult:
    """One run undisturbed, one under kills."""
    write_dataset(folder / "dataset", FILES)
    calm = job(folder / "calm", folder / "dataset")
    expected = train(calm, spark=spark, progress=progress)
    struck = job(folder / "struck", folder / "dataset", num_ranks=max(WORLDS))
    struck = struck.changed(train=hardened(struck.train, num_faults=kills, deadline_s=30.0))
    faults = [fault.model_dump() for fault in draw(kills, seed=seed, kinds=["kill"])]
    begin(struck.changed(train=struck.train.changed(num_ranks=WORLDS[0])), spark, progress)
    with slots_as_kills_go(struck.run_url):
        trained = train(struck, spark=spark, progress=progress, work=partial(train_rank_under_faults, faults=faults))
    return outcome(struck, calm, trained, expected, planned=kills)


def main() -> None:
    """Run the job and the peers; print the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--peer-kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    root = str(Path(__file__).resolve().parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])  # ranks of the peers import this module
    progress = console_progress()
    with tempfile.TemporaryDirectory(prefix="sparkring-recovery-") as folder:
        spark = spark_session(SparkConfig(master=f"local[{max(WORLDS)},4]"), app_name="benchmarks.recovery")
        try:
            ours = measure(Path(folder), options.kills, options.seed, spark, progress)
            print(f"sparkring: {figures(ours, {})}", flush=True)  # the peers take their time
            peers = {name: run_peer(name, Path(folder), options.peer_kills, spark, progress) for name in PEERS if options.peer_kills}
        finally:
            spark.stop()
    print_result([_row("sparkring", PeerOutcome(seconds=tuple(one.resume_s for one in ours.losses.resumptions if one.resume_s),
                                                steps_redone=tuple(one.steps_redone for one in ours.losses.resumptions))),
                  *(_row(name, found) for name, found in peers.items())], figures(ours, peers))


def figures(ours: ChaosResult, peers: dict[str, PeerOutcome]) -> dict[str, Figure]:
    """What the last line says."""
    assert ours.resume_s_median is not None
    assert ours.resume_s_max is not None
    assert ours.weights_difference is not None
    worlds = " ".join(str(size) for size in [WORLDS[0], *(one.ranks[1] for one in ours.losses.resumptions)])
    changes = {(before, after) for before, after in pairwise(map(int, worlds.split()))}
    return {"kills": ours.struck, "worlds": worlds, "worlds_changed": len(changes),
            "resume_s_median": ours.resume_s_median, "resume_s_max": ours.resume_s_max,
            "rows_lost": ours.rows_lost, "rows_repeated": ours.rows_repeated, "steps_redone_max": ours.steps_redone_max,
            "checkpoint_interval": ours.checkpoint_interval, "weights_difference": ours.weights_difference,
            "weights_equal": ours.weights_difference < SAME, "audit": ours.audit,
            **{f"{name}_resume_s_median": found.median_s for name, found in peers.items() if found.seconds}}


def _row(name: str, found: PeerOutcome) -> dict[str, object]:
    """A line of the table."""
    if not found.seconds:
        return {"who": name, "kills": 0, "resume s, median": found.note, "most": "", "each": "", "steps done again, most": ""}
    return {"who": name, "kills": len(found.seconds), "resume s, median": f"{found.median_s:.1f}", "most": f"{max(found.seconds):.1f}",
            "each": " ".join(f"{seconds:.1f}" for seconds in found.seconds),
            "steps done again, most": f"{max(found.steps_redone)} (checkpoint every {INTERVAL})"}


if __name__ == "__main__":
    main()
