"""The useful share of the wall-clock time of a job that fails once every 20 times the seconds that it takes to resume.

    uv run python -m benchmarks.goodput                 3 failures: about 60 times the seconds to resume
    uv run python -m benchmarks.goodput --failures 1

A short run under kills says how long it takes to resume, and how long a step. The long run then gets as many steps as make its failures
come that seldom. Useful is the time between the first and the last step that count of each life of the ring: what a kill made be done
again, and the way from a kill to the next step, are not.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.recovery import FILES, job
from benchmarks.support.report import print_result
from harness.datasets import write_dataset
from sparkring.cli.terminal.console import console_progress
from sparkring.conf.schema import Config, SparkConfig
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.events.writer import read_events
from sparkring.spark_jobs.chaos import hardened
from sparkring.spark_jobs.fault_injection.faults import draw
from sparkring.spark_jobs.fault_injection.injector import strikes, train_rank_under_faults
from sparkring.spark_jobs.fault_injection.losses import Losses, losses
from sparkring.spark_jobs.spark.progress import Progress
from sparkring.spark_jobs.spark.session import spark_session
from sparkring.spark_jobs.stored.audit import audit
from sparkring.spark_jobs.train import train

APART = 20
"""Seconds between two failures, in seconds to resume."""
PROBES = 2
"""Kills of the short run."""
LIMIT = 0.92


def under_kills(config: Config, kills: int, *, seed: int, spark: SparkSession, progress: Progress) -> Losses:
    """Train while so many kills come; what they cost."""
    config = config.changed(train=hardened(config.train, num_faults=kills, deadline_s=30.0))
    faults = [fault.model_dump() for fault in draw(kills, seed=seed, kinds=["kill"])]
    train(config, spark=spark, progress=progress, work=partial(train_rank_under_faults, faults=faults))
    rows = Dataset(config.dataset).manifest(config.dataset_version).splits["train"].rows
    audit(config.run_url)  # raises where a row came twice or not at all
    return losses(read_events(config.run_url), strikes(open_store(config.run_url)), rows_per_epoch=rows)


def seconds_to_resume(found: Losses) -> float:
    """Mean over the kills."""
    each = [one.resume_s for one in found.resumptions if one.resume_s is not None]
    return sum(each) / len(each)


def main() -> None:
    """Run both and print the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--failures", type=int, default=3)
    options = parser.parse_args()
    progress = console_progress()
    with tempfile.TemporaryDirectory(prefix="sparkring-goodput-") as name:
        folder, spark = Path(name), spark_session(SparkConfig(master="local[2]"), app_name="benchmarks.goodput")
        try:
            write_dataset(folder / "dataset", FILES)
            short = under_kills(job(folder / "short", folder / "dataset", epochs=2), PROBES, seed=1, spark=spark, progress=progress)
            resume_s, step_s = seconds_to_resume(short), short.useful_s / short.steps
            wanted_s = options.failures * APART * resume_s
            epochs = max(1, math.ceil(wanted_s / step_s / (short.steps / 2)))
            progress.note(f"goodput: {resume_s:.1f} s to resume, {step_s * 1e3:.1f} ms a step: {epochs} epochs")
            found = under_kills(job(folder / "long", folder / "dataset", epochs=epochs), options.failures, seed=2, spark=spark,
                                progress=progress)
        finally:
            spark.stop()
    apart_s = found.useful_s / options.failures
    rows = [{"what": "failures", "value": str(len(found.resumptions))},
            {"what": "seconds to resume, mean", "value": f"{seconds_to_resume(found):.1f}"},
            {"what": "useful seconds a failure", "value": f"{apart_s:.0f} ({apart_s / seconds_to_resume(found):.1f} x resuming)"},
            {"what": "steps done again", "value": str(sum(one.steps_redone for one in found.resumptions))},
            {"what": f"goodput (at least {LIMIT})", "value": f"{found.goodput:.4f}"}]
    print_result(rows, {"goodput": found.goodput, "failures": len(found.resumptions), "resume_s": seconds_to_resume(found),
                        "apart": apart_s / seconds_to_resume(found), "rows_lost": found.rows_lost, "rows_repeated": found.rows_repeated})


if __name__ == "__main__":
    main()
