"""The chart of how stale updates were, of a run whose steps were dealt."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sparkring.spark_jobs.reporting.charts.canvas import Picture, draw, name_axes
from sparkring.spark_jobs.reporting.charts.palette import NETWORK
from sparkring.spark_jobs.reporting.facts.words import compact, count, several, share


def staleness_picture(updates: Mapping[int, int]) -> Picture:
    """A bar a staleness.

    Args:
        updates: Staleness -> the number of updates that had it; at least one.
    """
    total, highest = sum(updates.values()), max(updates)
    mean = sum(staleness * number for staleness, number in updates.items()) / total

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.grid(visible=False, axis="x")
        axes.bar(list(updates), list(updates.values()), width=0.7, color=NETWORK.light)
        axes.set_xlim(-0.6, highest + 0.6)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
        name_axes(axes, x="updates applied in between", y="updates")

    return Picture(
        name="staleness", title="How stale updates were",
        svg=draw(paint, name="staleness", label=f"Histogram of staleness: mean {mean:.2f}, at most {highest}, of {count(total)} updates."),
        caption=f"Of {several(total, 'update')}, {share(updates.get(0, 0) / total)} were applied to the very weights that they were "
                f"computed with. Mean staleness {mean:.2f}, at most {highest}.")
