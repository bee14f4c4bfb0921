"""Pictures of a study's page, as SVG files of the reports' style that follow the reader's light or dark theme. Reads no files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from sparkring.spark_jobs.reporting.charts.canvas import WIDE, draw, name_axes
from sparkring.spark_jobs.reporting.charts.palette import BASE_RATE, COMM, DATA, INK, LOGISTIC, NETWORK, WEIGHT_GRADIENT, Shade
from sparkring.spark_jobs.reporting.charts.svg import as_file
from sparkring.spark_jobs.reporting.facts.words import compact, count

HEIGHT = 340
SHADES = (NETWORK, LOGISTIC, WEIGHT_GRADIENT, COMM, DATA, INK, BASE_RATE)
DASHES: Mapping[str, str | tuple[int, tuple[int, ...]]] = {"line": "-", "dashed": (0, (5, 2)), "dotted": (0, (1, 2))}


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A picture of a page."""

    name: str
    """In the name of its file."""
    label: str
    """What it shows, for readers who cannot see it."""
    svg: str


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a picture, or its marks alone."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "line"
    marks: bool = True
    shade: Shade | None = None
    """None: the next one of ``SHADES``."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of a picture."""

    title: str
    log: int | None = None
    """The base of a logarithmic axis."""
    ticks: Sequence[float] = ()
    """The only ones; empty: where matplotlib puts them."""
    limits: tuple[float | None, float | None] = (None, None)


def lines(name: str, label: str, drawn: Sequence[Line], *, x: Axis, y: Axis) -> Drawing:
    """Draw lines over one pair of axes, with a legend beside them."""
    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        shades = cycle(SHADES)
        for line in drawn:
            shade = line.shade or next(shades)
            axes.plot(line.x, line.y, color=shade.light, linestyle=DASHES[line.style], marker="o" if line.marks else "", markersize=4,
                      label=line.label)
        _set(axes, x, which="x")
        _set(axes, y, which="y")
        name_axes(axes, x=x.title, y=y.title)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))

    return _drawing(name, label, paint)


def histograms(name: str, label: str, bars: Mapping[str, Mapping[int, float]], *, x: str, y: str) -> Drawing:
    """Draw a histogram for each name, side by side over the same height.

    Args:
        name: Of the picture.
        label: What it shows.
        bars: By the title of a histogram, the height of each of its bars.
        x: What the bars count.
        y: What their heights are.
    """
    def paint(figure: Figure) -> None:
        places = figure.subplots(1, len(bars), sharey=True, squeeze=False)[0]
        for axes, (title, heights) in zip(places, bars.items(), strict=True):
            axes.grid(visible=False, axis="x")
            axes.bar(list(heights), list(heights.values()), width=0.7, color=NETWORK.light)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
            axes.set_xlim(-0.6, max(heights) + 0.6)
            name_axes(axes, x=x, y=title)
        places[0].set_ylabel(y)

    return _drawing(name, label, paint)


def bars(name: str, label: str, groups: Mapping[str, Mapping[str, float]], *, y: str) -> Drawing:
    """Draw bars side by side: by the name of a group, that of each of its bars and its height."""
    width = 0.8 / len(groups)

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for place, ((group, heights), shade) in enumerate(zip(groups.items(), SHADES, strict=False)):
            axes.bar([number + (place + 0.5) * width - 0.4 for number in range(len(heights))], list(heights.values()), width=width,
                     color=shade.light, label=group)
            axes.set_xticks(range(len(heights)), list(heights))
        name_axes(axes, x="", y=y)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))

    return _drawing(name, label, paint)


def _drawing(name: str, label: str, paint: Callable[[Figure], None]) -> Drawing:
    return Drawing(name=name, label=label, svg=as_file(draw(paint, name=name, label=label, height=HEIGHT, width=WIDE)))


def _set(axes: Axes, asked: Axis, *, which: str) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    if asked.log:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log", base=asked.log)
        axis.set_minor_locator(NullLocator())
    if asked.ticks:
        axis.set_major_locator(FixedLocator(list(asked.ticks)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: count(value) if asked.ticks else compact(value)))
    (axes.set_xlim if which == "x" else axes.set_ylim)(*asked.limits)
