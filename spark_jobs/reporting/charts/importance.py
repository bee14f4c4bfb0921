"""The chart of permutation importance."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sparkring.spark_jobs.explaining.documents import Importance
from sparkring.spark_jobs.reporting.charts.canvas import Picture, draw
from sparkring.spark_jobs.reporting.charts.palette import BASE_RATE, INK, MUTED, NETWORK
from sparkring.spark_jobs.reporting.facts.words import count

MOST_BARS = 20
MOST_LETTERS = 24
"""Of a feature's name: the bars need their room, too."""


def importance_picture(found: Importance) -> Picture:
    """A bar a feature, the most important first, each with its interval."""
    shown = found.features[:MOST_BARS]
    telling = sum(each.low > 0 for each in found.features)

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        places = range(len(shown))
        axes.barh(places, [each.rise for each in shown], height=0.62,
                  color=[(NETWORK if each.low > 0 else BASE_RATE).light for each in shown])
        axes.hlines(places, [each.low for each in shown], [each.high for each in shown], color=INK.light, linewidth=1.2)
        axes.axvline(0, color=MUTED.light, linewidth=1)
        axes.set_yticks(list(places), [shortened(each.feature) for each in shown])
        axes.set(ylim=(len(shown) - 0.5, -0.5), xlabel="rise of the mean loss")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))

    rest = f" The {count(len(found.features) - len(shown))} that are not drawn matter less." if len(found.features) > len(shown) else ""
    first = ", ".join(f"{each.feature} {each.rise:+.4g}" for each in shown[:3])
    return Picture(
        name="importance", title="What the network leans on",
        svg=draw(paint, name="importance", height=80 + 22 * max(4, len(shown)),
                 label=f"Permutation importance of {count(len(found.features))} features, the first: {first}."),
        caption=f"How much the mean loss of {count(found.rows)} held-out rows rises when a feature's values are dealt to other rows, with "
                f"its 95\u00a0% interval. {count(telling)} of {count(len(found.features))} features matter beyond chance (blue).{rest} "
                "Features that tell the same share their importance.")


def shortened(name: str) -> str:
    """A name that leaves room for the bars."""
    return name if len(name) <= MOST_LETTERS else f"{name[:MOST_LETTERS - 2]}.."
