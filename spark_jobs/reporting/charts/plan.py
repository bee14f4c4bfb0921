"""The scaling curve of a plan: the speed of more ranks, with the best layout and with plain data parallelism. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from sparkring.spark_jobs.reporting.charts.canvas import draw, name_axes
from sparkring.spark_jobs.reporting.charts.palette import BASE_RATE, LOGISTIC, NETWORK
from sparkring.spark_jobs.reporting.charts.svg import as_file
from sparkring.spark_jobs.reporting.facts.words import compact, several


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Seconds of a step on this many ranks; infinite if no layout can be used."""

    num_ranks: int
    best_s: float
    plain_s: float


def scaling_file(points: Sequence[Scaling], *, title: str) -> str:
    """Draw the curve as an SVG file.

    Args:
        points: By ascending numbers of ranks; speed is relative to the first that can be used at all.
        title: The subject of the plan, in words.
    """
    first = next((point for point in points if math.isfinite(point.best_s)), None)

    def paint(figure: Figure) -> None:
        axes: Axes = figure.add_subplot()
        if first is not None:
            ranks = [point.num_ranks for point in points]
            ideal = [count / first.num_ranks for count in ranks]
            axes.plot(ranks, ideal, color=BASE_RATE.light, linestyle="dotted", label="in proportion")
            for name, shade, style, seconds in (
                    ("plain data parallelism", LOGISTIC, "--", [point.plain_s for point in points]),
                    ("best layout", NETWORK, "-", [point.best_s for point in points])):
                axes.plot(ranks, [first.best_s / each if math.isfinite(each) else math.nan for each in seconds],
                          color=shade.light, linestyle=style, marker="o", markersize=4, label=name)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log", base=2)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
                axis.set_minor_locator(NullLocator())
            axes.legend(frameon=False, loc="upper left")
        name_axes(axes, x="ranks", y=f"steps a second, relative ({title})")

    label = "; ".join(f"{several(point.num_ranks, 'rank')}: {_times(first, point.best_s)}" for point in points)
    return as_file(draw(paint, name="plan", label=f"Predicted speed of the best layout, {title}. {label}."))


def _times(first: Scaling | None, seconds: float) -> str:
    return f"{first.best_s / seconds:.3g} times" if first is not None and math.isfinite(seconds) else "does not run"
