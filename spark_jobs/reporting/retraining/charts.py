"""Charts of retrainings: champion and candidate over time, the gain of each, the drift before the last."""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sparkring.spark_jobs.reporting.charts.canvas import LegendEntry, Picture, draw, name_axes
from sparkring.spark_jobs.reporting.charts.importance import shortened
from sparkring.spark_jobs.reporting.charts.palette import BASE_RATE, LOGISTIC, MUTED, NETWORK
from sparkring.spark_jobs.reporting.retraining.facts import LARGE_DRIFT, SMALL_DRIFT, Retraining, Retrainings, day

MOST_MARKS = 80
"""Most retrainings whose points are marked."""


class _Gain(NamedTuple):
    place: float
    value: float
    low: float
    high: float
    promoted: bool


def retraining_pictures(facts: Retrainings) -> tuple[Picture, ...]:
    """Quality over time, and the gain of each candidate that was compared; nothing of a single retraining, which is no course of time."""
    if len(facts.over) < 2:
        return ()
    return (*([_quality(facts)] if any(facts.after(each) is not None for each in facts.over) else []),
            *([_gains(facts)] if facts.compared else []))


def drift_picture(facts: Retrainings) -> Picture | None:
    """The drift before the last retraining for which it was measured."""
    return _drift(facts.with_drift[-1]) if facts.with_drift else None


def _quality(facts: Retrainings) -> Picture:
    points = [(each, value) for each in facts.over if (value := facts.after(each)) is not None]
    before = [(_place(each), value) for each in facts.over if (value := facts.before(each)) is not None]

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        marked = len(points) <= MOST_MARKS
        if before:
            axes.plot(*zip(*before, strict=True), color=BASE_RATE.light, linestyle=(0, (5, 2)), marker="s" if marked else "",
                      markersize=4.5)
        axes.plot([_place(each) for each, _ in points], [value for _, value in points], color=NETWORK.light, linewidth=1.2)
        for promoted, face in ((True, NETWORK.light), (False, "none")):
            chosen = [(_place(each), value) for each, value in points if each.promoted is promoted]
            if chosen and marked:
                axes.plot(*zip(*chosen, strict=True), linestyle="", marker="o", markersize=7, markerfacecolor=face,
                          markeredgecolor=NETWORK.light, markeredgewidth=1.6)
        _time_axis(axes, facts)
        name_axes(axes, x=_x(facts), y=f"{facts.chief.title} on test rows")

    last, value = points[-1]
    champion = facts.before(last)
    against = f", the champion's {facts.chief.text(champion)}" if champion is not None else ""
    words = f"the last candidate's {facts.chief.title} is {facts.chief.text(value)}{against}"
    return Picture(
        name="quality", title="Champion and candidate on the newest test rows",
        svg=draw(paint, name="quality", label=f"{facts.chief.title} at {len(points)} retrainings: {words}."),
        legend=(LegendEntry("candidate (filled: promoted)", NETWORK),
                *([LegendEntry("champion until then", BASE_RATE, "dashed")] if before else [])),
        caption=f"{words[0].upper()}{words[1:]}. {'Lower' if facts.chief.lower_is_better else 'Higher'} is better. Test rows change from "
                "time to time, so only the distance between the two at one time tells which model is better.")


def _gains(facts: Retrainings) -> Picture:
    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.axhline(0, color=MUTED.light, linewidth=1, linestyle=(0, (2, 3)))
        for promoted, shade, face in ((True, NETWORK, NETWORK.light), (False, LOGISTIC, "none")):
            gains = [gain for gain in _intervals(facts) if gain.promoted is promoted]
            axes.vlines([gain.place for gain in gains], [gain.low for gain in gains], [gain.high for gain in gains], color=shade.light,
                        linewidth=1.8)
            axes.plot([gain.place for gain in gains], [gain.value for gain in gains], linestyle="", marker="o", markersize=6,
                      markerfacecolor=face, markeredgecolor=shade.light, markeredgewidth=1.6)
        _time_axis(axes, facts)
        name_axes(axes, x=_x(facts), y="champion's mean loss less candidate's")

    found = _intervals(facts)
    better, worse = sum(gain.low > 0 for gain in found), sum(gain.high < 0 for gain in found)
    words = f"{better} of {len(found)} candidates better beyond chance, {worse} worse"
    return Picture(
        name="gains", title="Gain of each candidate, with its interval",
        svg=draw(paint, name="gains", label=f"Gain in mean loss by retraining: {words}."),
        legend=(LegendEntry("promoted", NETWORK), LegendEntry("not promoted", LOGISTIC)),
        caption=f"{words[0].upper()}{words[1:]}. Above the dotted line the candidate is better. Both models saw the same rows; the "
                "interval has the confidence of retrain.promote.confidence.")


def _intervals(facts: Retrainings) -> list[_Gain]:
    return [_Gain(_place(each), each.ended.gain, each.ended.gain_low, each.ended.gain_high, each.promoted) for each in facts.compared
            if each.ended.gain is not None and each.ended.gain_low is not None and each.ended.gain_high is not None]


def _drift(each: Retraining) -> Picture:
    names, indices = zip(*sorted(each.ended.drift.items(), key=lambda one: -one[1]), strict=True)
    bounds = [bound for bound in (SMALL_DRIFT, LARGE_DRIFT) if bound <= 1.5 * max(indices)]

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.barh(range(len(names)), indices, height=0.62, color=[_shade(index) for index in indices])
        for bound in bounds:
            axes.axvline(bound, color=MUTED.light, linewidth=1, linestyle=(0, (2, 3)))
        longest = max(*indices, *bounds, 1e-3)
        for place, index in enumerate(indices):
            axes.text(1.2 * longest, place, f"{index:.3f}", va="center", ha="right", fontsize=10.5, color=MUTED.light)
        axes.set_yticks(range(len(names)), [shortened(name) for name in names])
        axes.set(xlim=(0, 1.2 * longest), ylim=(len(names) - 0.5, -0.5), xlabel="stability index")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))

    return Picture(
        name="drift", title=f"Drift before retraining {each.ended.number}, {day(each.ended.at)}",
        svg=draw(paint, name="drift", height=90 + 26 * max(3, len(names)),
                 label=f"Stability index by feature, from {names[0]} {indices[0]:.3f} to {names[-1]} {indices[-1]:.3f}."),
        caption=f"Rows that were new to the champion against its train rows. Above {SMALL_DRIFT:g} is usually called a small shift, above "
                f"{LARGE_DRIFT:g} a large one.")


def _shade(index: float) -> str:
    return (LOGISTIC if index > LARGE_DRIFT else NETWORK if index > SMALL_DRIFT else BASE_RATE).light


def _x(facts: Retrainings) -> str:
    return "newest row of the dataset version" if facts.by_newest_row else "end of the retraining"


def _time_axis(axes: Axes, facts: Retrainings) -> None:
    places = [_place(each) for each in facts.over]
    margin = 0.05 * (max(places) - min(places)) or 1.0
    axes.set_xlim(min(places) - margin, max(places) + margin)
    locator = AutoDateLocator(minticks=2, maxticks=5)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(  # type: ignore[no-untyped-call]
        locator, show_offset=False, formats=["%Y", "%b %Y", "%d %b", "%H:%M", "%H:%M", "%S"],
        zero_formats=["", "%Y", "%d %b", "%d %b", "%H:%M", "%H:%M"]))


def _place(each: Retraining) -> float:
    """Days since 1970, as matplotlib counts them."""
    return each.at.timestamp() / 86400
