"""The main job after set-up, in a fresh workspace: seconds of each step, and whether the network beats both baselines.

    uv run python -m benchmarks.demo

The claim: at most 180 s on 2 cores, and AUC network > logistic regression > base rate on the test split.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.support.report import print_result
from sparkring.cli.terminal.console import console_progress
from sparkring.conf.loading import load_config
from sparkring.spark_jobs.demo import demo

LIMIT_S = 180


def main() -> None:
    """Run the job and print the table and the figures."""
    with tempfile.TemporaryDirectory(prefix="sparkring-benchmark-") as folder:
        config = load_config("local/flights", [f"workspace={Path(folder).as_posix()}"])
        began = time.perf_counter()
        result = demo(config, progress=console_progress())
        total = time.perf_counter() - began
    auc = {name: result.evaluation[name]["auc"] for name in ("network", "logistic_regression", "base_rate")}
    rows = [{"what": f"{step}, s", "value": f"{seconds:.1f}"} for step, seconds in result.seconds.items()]
    rows.append({"what": f"all, s (at most {LIMIT_S})", "value": f"{total:.1f}"})
    rows += [{"what": f"test AUC, {name.replace('_', ' ')}", "value": f"{value:.4f}"} for name, value in auc.items()]
    print_result(rows, {
        "prepare_s": result.seconds["prepare"], "train_s": result.seconds["train"], "score_s": result.seconds["score"], "total_s": total,
        "auc": auc["network"], "auc_logistic": auc["logistic_regression"], "auc_base": auc["base_rate"]})


if __name__ == "__main__":
    main()
