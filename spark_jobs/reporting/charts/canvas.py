"""The house style of all charts: set a figure up, turn it into SVG, and describe it.

A chart is 440 units wide, so that its text stays legible both in a column of a desktop page and across a phone. Its
title, legend and caption are HTML, which wraps. Nothing here touches pyplot or leaves matplotlib's settings changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sparkring.spark_jobs.reporting.charts.palette import GRID, INK, MUTED, Shade
from sparkring.spark_jobs.reporting.charts.svg import inline_svg
from sparkring.spark_jobs.reporting.facts.words import compact

WIDTH, HEIGHT = 440, 290
WIDE = 880
"""Width of pictures that span the page; on a phone they scroll instead of shrinking."""
UNITS_PER_INCH = 72

_STYLE: dict[Any, Any] = {
    # Text stays text: searchable, sharp, in the page's font; a column's name with two $ is no mathematics. Layout is computed for DejaVu
    # Sans, a wide font, so others fit.
    "svg.fonttype": "none", "text.parse_math": False, "svg.hashsalt": "sparkring", "font.family": "DejaVu Sans", "font.size": 11.5,
    "text.color": INK.light, "axes.labelcolor": MUTED.light, "axes.edgecolor": GRID.light,
    "xtick.color": MUTED.light, "ytick.color": MUTED.light, "xtick.major.size": 0, "ytick.major.size": 0,
    "xtick.major.pad": 8, "ytick.major.pad": 5, "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
    "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True, "grid.color": GRID.light, "grid.linewidth": 0.8,
    "lines.linewidth": 2.0, "lines.solid_capstyle": "round", "axes.facecolor": "none", "figure.facecolor": "none",
}


KeyStyle = Literal["line", "dashed", "dotted", "faint", "box"]


@dataclass(frozen=True)
class LegendEntry:
    """One entry of a legend."""

    label: str
    shade: Shade
    style: KeyStyle = "line"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A chart with the words around it."""

    name: str
    """Unique within a page."""
    title: str
    svg: Markup
    caption: str
    legend: tuple[LegendEntry, ...] = ()


def draw(paint: Callable[[Figure], None], *, name: str, label: str, height: int = HEIGHT, width: int = WIDTH) -> Markup:
    """Set up a figure in the house style, let ``paint`` fill it, and render it.

    Args:
        paint: Adds axes and artists.
        name: The picture's name; unique within a page.
        label: A description for readers who cannot see it.
        height: Height in units.
        width: ``WIDTH`` or ``WIDE``.
    """
    with rc_context(_STYLE):
        figure = Figure(figsize=(width / UNITS_PER_INCH, height / UNITS_PER_INCH), layout="constrained")
        paint(figure)
        return inline_svg(figure, name=name, label=label, wide=width > WIDTH)


def name_axes(axes: Axes, *, x: str, y: str) -> None:
    """Label both axes; the y label lies on top, where it reads horizontally."""
    axes.set_xlabel(x)
    axes.set_title(y, loc="left", fontsize=11.5, color=MUTED.light, x=0.0)


def count_axis(axes: Axes, *, highest: float) -> None:
    """Make x a count: whole numbers, thousands as ``20k``."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    axes.set_xlim(min(1.0, highest), max(highest, 1.0) + (0.5 if highest <= 1 else 0.0))
