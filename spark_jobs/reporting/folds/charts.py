"""Charts of a cross-validation: each metric, fold by fold, with its mean and its spread."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sparkring.spark_jobs.reporting.charts.canvas import LegendEntry, Picture, draw, name_axes
from sparkring.spark_jobs.reporting.charts.palette import BASE_RATE, NETWORK
from sparkring.spark_jobs.reporting.facts.words import metric
from sparkring.spark_jobs.reporting.folds.facts import FoldResult, Spread, spreads


def fold_pictures(folds: Sequence[FoldResult]) -> tuple[Picture, ...]:
    """A picture for each metric that is finite in all folds."""
    return tuple(_picture(name, folds, found) for name, found in spreads(folds).items() if found.mean is not None)


def _picture(name: str, folds: Sequence[FoldResult], found: Spread) -> Picture:
    mean, deviation = found.mean or 0.0, found.deviation or 0.0

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.axhspan(mean - deviation, mean + deviation, color=BASE_RATE.light, alpha=0.25, linewidth=0)
        axes.axhline(mean, color=BASE_RATE.light)
        values = [value for each in folds if (value := each.metrics[name]) is not None]
        axes.plot([each.fold for each in folds], values, "o", color=NETWORK.light)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
        axes.set_xlim(-0.5, len(folds) - 0.5)
        name_axes(axes, x="fold", y=name)

    words = f"mean {metric(mean)}, sample standard deviation {metric(deviation)}"
    return Picture(name=f"folds-{name}", title=f"Held-out {name} by fold",
                   svg=draw(paint, name=f"folds-{name}", label=f"Held-out {name} of {len(folds)} folds: {words}."),
                   legend=(LegendEntry("fold", NETWORK), LegendEntry("mean and spread", BASE_RATE)),
                   caption=f"{words[0].upper()}{words[1:]}: the line and the band around it.")
