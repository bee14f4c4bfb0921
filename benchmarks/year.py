"""A year of real flights, replayed month by month: the champion's metric with retraining, and the first model's without.

    uv run python -m benchmarks.year [--picture docs/images/year.svg]

The first model knows the flights of January to March 2013. Then each month's file comes, ``sparkring retrain`` runs, and both the
champion and the first model are measured on the same rows: the latest 15 days, which neither has trained on.
"""

from __future__ import annotations

import argparse
import calendar
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.support.report import print_result
from harness.flight_nights import write_config, write_months
from sparkring.conf.loading import load_config
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.evaluate import measure
from sparkring.spark_jobs.registry.registry import Registry
from sparkring.spark_jobs.reporting.charts.palette import MUTED, NETWORK
from sparkring.spark_jobs.retrain import RetrainResult, retrain

FIRST_MONTHS, LAST_MONTH = (1, 2, 3), 12


@dataclass(frozen=True)
class Month:
    """One night."""

    month: int
    outcome: str
    reason: str
    rows: int
    """Train rows of the candidate."""
    tested: int
    auc: float
    """The champion's, after this night."""
    auc_first: float
    """That of the model of the first night, on the same rows."""


def replay(folder: Path, *, until: int = LAST_MONTH, **sections: Any) -> Iterator[Month]:
    """Replay the months in ``folder``; sections replace those of the shipped job."""
    write_months(folder, FIRST_MONTHS)
    config = write_config(folder, **sections)
    first = retrain(config)
    yield _month(config, FIRST_MONTHS[-1], first, first)
    for month in range(FIRST_MONTHS[-1] + 1, until + 1):
        write_months(folder, [month])
        yield _month(config, month, retrain(config), first)


def _month(config: str, month: int, night: RetrainResult, first: RetrainResult) -> Month:
    loaded = load_config(config)
    manifest = Dataset(loaded.dataset).manifest(night.dataset_version)
    champion = Registry(loaded.workspace).version("champion")
    auc, auc_first = (measure(loaded, run=run, dataset_version=manifest.version)["auc"] for run in (champion.run, first.run))
    return Month(month, night.outcome, night.reason, manifest.splits["train"].rows, manifest.splits["test"].rows, auc, auc_first)


def draw(months: Sequence[Month], file: Path) -> None:
    """The two lines as a picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axes = figure.subplots()
    names = [calendar.month_abbr[month.month] for month in months]
    axes.plot(names, [month.auc for month in months], color=NETWORK.light, marker="o", label="retrained every month: the champion")
    axes.plot(names, [month.auc_first for month in months], color=MUTED.light, marker="o", linestyle="--",
              label="never retrained: the model of March")
    axes.set_xlabel("latest known month of 2013")
    axes.set_ylabel("AUC on the latest 15 days")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(file, format="svg", metadata={"Date": None})


def main() -> None:
    """Replay the year and print it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--picture", type=Path, help="also draw the lines into this SVG file")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="sparkring-year-") as name:
        months = []
        for month in replay(Path(name)):
            months.append(month)
            print(month, flush=True)
    if options.picture:
        draw(months, options.picture)
    later = months[1:]
    print_result(
        [{"month": month.month, "outcome": month.outcome, "train rows": month.rows, "test rows": month.tested,
          "champion": f"{month.auc:.4f}", "model of March": f"{month.auc_first:.4f}"} for month in months],
        {"months": len(later), "promoted": sum(month.outcome == "promoted" for month in later),
         "auc_retrained": sum(month.auc for month in later) / len(later),
         "auc_never_retrained": sum(month.auc_first for month in later) / len(later)})


if __name__ == "__main__":
    main()
