"""Charts of strategies side by side: loss against steps, seconds and bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from sparkring.spark_jobs.reporting.charts.canvas import KeyStyle, LegendEntry, Picture, draw, name_axes
from sparkring.spark_jobs.reporting.charts.palette import BACKWARD, BASE_RATE, COMM, INPUT_GRADIENT, NETWORK, WEIGHT_GRADIENT
from sparkring.spark_jobs.reporting.comparison.facts import Compared
from sparkring.spark_jobs.reporting.facts.thinning import Curve
from sparkring.spark_jobs.reporting.facts.words import metric

_SHADES = (NETWORK, BACKWARD, WEIGHT_GRADIENT, COMM, INPUT_GRADIENT, BASE_RATE)
_STYLES: tuple[KeyStyle, ...] = ("line", "dashed", "dotted")
_DASHES = {"line": "-", "dashed": (0, (5, 2)), "dotted": (0, (1.5, 1.5))}


def comparison_pictures(runs: Sequence[Compared]) -> tuple[Picture, ...]:
    """Loss against steps, against seconds and, if the runs sent anything, against megabytes."""
    pictures = [_picture("loss-by-step", "Train loss against steps", "step", runs, lambda run: run.by_step),
                _picture("loss-by-second", "Train loss against time", "seconds", runs, lambda run: run.by_second)]
    if any(run.sent_bytes for run in runs):
        pictures.append(_picture("loss-by-megabyte", "Train loss against what was sent", "megabytes sent", runs,
                                 lambda run: run.by_megabyte))
    return tuple(pictures)


def _picture(name: str, title: str, x: str, runs: Sequence[Compared], curve: Callable[[Compared], Curve]) -> Picture:
    keys = [LegendEntry(run.strategy, _SHADES[place % len(_SHADES)], _STYLES[place // len(_SHADES) % len(_STYLES)])
            for place, run in enumerate(runs)]

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for run, key in zip(runs, keys, strict=True):
            line = curve(run)
            axes.plot(line.x, line.y, color=key.shade.light, linestyle=_DASHES[key.style])
        axes.set_xlim(left=0)
        name_axes(axes, x=x, y="loss")

    ends = ", ".join(f"{run.strategy} {metric(curve(run).y[-1] if run.by_step.y else None)}" for run in runs)
    return Picture(name=name, title=title, svg=draw(paint, name=name, label=f"{title}; at the end: {ends}."), legend=tuple(keys),
                   caption=f"Moving mean over the steps in the order in which they ended. At the end: {ends}.")
