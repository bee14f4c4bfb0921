"""Charts of a search: the best value over the trials, the metric against each key's values, the metric after each epoch."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, MaxNLocator

from sparkring.conf.schema import HeldOutMetric
from sparkring.conf.schema.search import SearchedKey
from sparkring.pipelines.training.evaluation.score import signed
from sparkring.spark_jobs.reporting.charts.canvas import LegendEntry, Picture, draw, name_axes
from sparkring.spark_jobs.reporting.charts.palette import BASE_RATE, LOGISTIC, NETWORK, OTHER
from sparkring.spark_jobs.reporting.facts.words import metric
from sparkring.spark_jobs.searching.space import Space
from sparkring.spark_jobs.searching.trials import Trial

_DONE, _PRUNED = LegendEntry("trained to its end", NETWORK, "box"), LegendEntry("ended early", BASE_RATE, "box")


def search_pictures(trials: Sequence[Trial], best: Trial, *, space: Space, name: HeldOutMetric) -> tuple[Picture, ...]:
    """The pictures of a search.

    Args:
        trials: Those that have ended, by number.
        best: One of them.
        space: What was searched.
        name: The metric.
    """
    measured = [trial for trial in trials if any(map(math.isfinite, trial.epochs))]
    return (_over_trials(measured, best, name), _over_epochs(measured, best, name),
            *(_against(key, space[key], place, measured, name) for place, key in enumerate(space)))


def _over_trials(trials: Sequence[Trial], best: Trial, name: HeldOutMetric) -> Picture:
    done = [trial for trial in trials if trial.value is not None]
    so_far = [min((each for each in done if each.number <= trial.number), key=lambda each: signed(_value(each), name)) for trial in done]

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.step([trial.number for trial in done], [_value(trial) for trial in so_far], where="post", color=LOGISTIC.light)
        _dots(axes, [(trial.number, trial) for trial in trials], name)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        name_axes(axes, x="trial", y=f"held-out {name}")

    words = f"the best {name} is {metric(best.value)}, in trial {best.number}"
    return Picture(name="trials", title="The trials", legend=(_DONE, _PRUNED, LegendEntry("best so far", LOGISTIC)),
                   svg=draw(paint, name="trials", label=f"Held-out {name} by trial: {words}."),
                   caption=f"Of {len(trials)} trials {words}. A trial that ended early stands at its best epoch.")


def _over_epochs(trials: Sequence[Trial], best: Trial, name: HeldOutMetric) -> Picture:
    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for trial in trials:
            axes.plot(range(1, len(trial.epochs) + 1), trial.epochs, color=OTHER.light, linewidth=1.2, marker="o", markersize=2.5)
        axes.plot(range(1, len(best.epochs) + 1), best.epochs, color=NETWORK.light, marker="o", markersize=4)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        name_axes(axes, x="epoch", y=f"held-out {name}")

    return Picture(name="epochs", title="After each epoch",
                   legend=(LegendEntry(f"trial {best.number}, the best", NETWORK), LegendEntry("the others", OTHER)),
                   svg=draw(paint, name="epochs", label=f"Held-out {name} of each trial after each epoch."),
                   caption="Each line is a trial; it ends where the trial did.")


def _against(key: str, values: SearchedKey, place: int, trials: Sequence[Trial], name: HeldOutMetric) -> Picture:
    choices = [json.dumps(choice) for choice in values.choices]

    def at(trial: Trial) -> float:
        return choices.index(json.dumps(trial.params[key])) if choices else float(trial.params[key])

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        if values.log:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(LogFormatter())  # the scale's own writes mathematics
            axes.xaxis.set_minor_formatter(LogFormatter())
        _dots(axes, [(at(trial), trial) for trial in trials], name)
        if choices:
            axes.set_xticks(range(len(choices)), choices)
            axes.set_xlim(-0.5, len(choices) - 0.5)
        name_axes(axes, x=key, y=f"held-out {name}")

    return Picture(name=f"key-{place}", title=key, legend=(_DONE, _PRUNED),
                   svg=draw(paint, name=f"key-{place}", label=f"Held-out {name} against {key}."),
                   caption="Other keys vary from dot to dot, too.")


def _dots(axes: Axes, placed: Sequence[tuple[float, Trial]], name: HeldOutMetric) -> None:
    for done, shade, face in ((False, BASE_RATE, "none"), (True, NETWORK, NETWORK.light)):
        chosen = [(x, _best_epoch(trial, name)) for x, trial in placed if (trial.value is not None) is done]
        if chosen:
            axes.plot(*zip(*chosen, strict=True), linestyle="", marker="o", markersize=6, markerfacecolor=face,
                      markeredgecolor=shade.light, markeredgewidth=1.5)


def _best_epoch(trial: Trial, name: HeldOutMetric) -> float:
    return trial.value if trial.value is not None else min(filter(math.isfinite, trial.epochs), key=lambda value: signed(value, name))


def _value(trial: Trial) -> float:
    assert trial.value is not None
    return trial.value
