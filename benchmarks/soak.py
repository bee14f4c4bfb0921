"""One long job under 100 random faults of all kinds: does it come to its end, exactly, with the metrics of the undisturbed run?

    uv run python -m benchmarks.soak                   about 15 minutes on two cores
    uv run python -m benchmarks.soak --faults 6

The same as ``sparkring chaos``, in float64, so that what is left of a difference is a mistake and not rounding. Part of
``make test-nightly``, which it fails where a fault was not survived.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.recovery import FILES, job
from benchmarks.support.report import print_result
from harness.datasets import write_dataset
from sparkring.cli.terminal.console import console_progress
from sparkring.conf.schema import SparkConfig
from sparkring.spark_jobs.chaos import ChaosResult, chaos
from sparkring.spark_jobs.spark.session import spark_session

FAULTS = 100
EPOCHS = 20
DEADLINE_S = 8.0
NOISE = 1e-6
"""Relative difference of a held-out metric that is rounding."""


def within_noise(result: ChaosResult) -> bool:
    """Whether all held-out metrics are those of the undisturbed run."""
    return result.validation.keys() == result.undisturbed.keys() and all(
        abs(value - result.undisturbed[name]) <= NOISE * abs(result.undisturbed[name]) for name, value in result.validation.items())


def main() -> None:
    """Run it and print the table and the figures; exit code 1 where it did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=FAULTS)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sparkring-soak-") as name:
        folder, spark = Path(name), spark_session(SparkConfig(master="local[2]"), app_name="benchmarks.soak")
        try:
            write_dataset(folder / "dataset", FILES)
            config = job(folder, folder / "dataset", epochs=options.epochs, record_rows=False)
            result = chaos(config, num_faults=options.faults, seed=options.seed, deadline_s=DEADLINE_S, spark=spark,
                           progress=console_progress())
        finally:
            spark.stop()
    same = within_noise(result)
    rows = [{"fault": kind, "struck": str(count), "resume s, most": _most(result, kind)} for kind, count in sorted(result.kinds.items())]
    print_result(rows, {"survived": result.struck if result.survived else 0, "audit": result.audit, "metric_within_noise": same,
                        "rows_lost": result.rows_lost, "rows_repeated": result.rows_repeated, "restarts": result.restarts,
                        "resume_s_median": result.resume_s_median or 0.0, "resume_s_max": result.resume_s_max or 0.0,
                        "goodput": result.goodput, "weights_difference": result.weights_difference or 0.0, "failure": result.failure})
    if not (result.survived and same and result.audit == "green" and result.struck == options.faults):
        sys.exit(1)


def _most(result: ChaosResult, kind: str) -> str:
    seconds = [one.resume_s for one in result.losses.resumptions if one.kind == kind and one.resume_s is not None]
    return f"{max(seconds):.1f}" if seconds else "lived on"


if __name__ == "__main__":
    main()
