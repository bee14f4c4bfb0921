"""Charts of a run: losses, where the time went, rows a second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sparkring.spark_jobs.reporting.charts.canvas import LegendEntry, Picture, count_axis, draw, name_axes
from sparkring.spark_jobs.reporting.charts.palette import COMM, COMPUTE, DATA, MUTED, NETWORK, OTHER, TRAIN, VALIDATION
from sparkring.spark_jobs.reporting.charts.staleness import staleness_picture
from sparkring.spark_jobs.reporting.facts.run import Epoch, LossCurve, RankTime, RunFacts, StepTimes
from sparkring.spark_jobs.reporting.facts.thinning import Curve
from sparkring.spark_jobs.reporting.facts.words import compact, count, duration, metric, several, share

MOST_MARKS = 12
"""Most epochs that the curve over steps marks."""

_SPENT = (LegendEntry("data", DATA, "box"), LegendEntry("compute", COMPUTE, "box"), LegendEntry("communication", COMM, "box"))


def learning_pictures(facts: RunFacts) -> tuple[Picture, ...]:
    """Loss per step; once an epoch has ended, per epoch; and the staleness of updates, if steps were dealt."""
    pictures = []
    if facts.loss.smooth.y:
        pictures.append(_loss_by_step(facts.loss, facts.steps))
    if facts.epochs:
        pictures.append(_loss_by_epoch(facts.epochs))
    if facts.stalenesses:
        pictures.append(staleness_picture(facts.stalenesses))
    return tuple(pictures)


def time_pictures(facts: RunFacts) -> tuple[Picture, ...]:
    """Seconds a rank, seconds over the steps, rows a second."""
    pictures = [_time_by_rank(facts)]
    if facts.step_times.x:
        pictures.append(_time_by_step(facts.step_times))
    if facts.throughput.x:
        pictures.append(_throughput(facts.throughput, facts.rows_per_s))
    return tuple(pictures)


def _loss_by_step(loss: LossCurve, steps: int) -> Picture:
    marked = loss.epoch_ends if len(loss.epoch_ends) <= MOST_MARKS else ()

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for end in marked:
            axes.axvline(end, color=MUTED.light, alpha=0.5, linewidth=0.9, linestyle=(0, (3, 3)))
        axes.fill_between(loss.raw.x, loss.raw.low, loss.raw.high, color=TRAIN.light, alpha=0.28, linewidth=0.6)
        axes.plot(loss.smooth.x, loss.smooth.y, color=TRAIN.light)
        count_axis(axes, highest=steps)
        name_axes(axes, x="step", y="loss")

    first, last = loss.smooth.y[0], loss.smooth.y[-1]
    ends = "; dashed lines are ends of epochs" if marked else ""
    small = f" {several(loss.small, 'step')} with far fewer rows, such as an epoch's last, count in the mean only." if loss.small else ""
    missing = f" {count(loss.not_finite)} steps had a loss that is not a number and are not drawn." if loss.not_finite else ""
    return Picture(
        name="loss-steps", title="Train loss, step by step",
        svg=draw(paint, name="loss-steps", label=f"Train loss over {count(steps)} steps: from {metric(first)} to {metric(last)}."),
        legend=(LegendEntry("moving mean", TRAIN), LegendEntry("single steps", TRAIN, "faint")),
        caption=f"From {metric(first)} to {metric(last)} over {count(steps)} steps{ends}.{small}{missing}")


def _loss_by_epoch(epochs: Sequence[Epoch]) -> Picture:
    numbers = [epoch.number for epoch in epochs]
    validated = [(epoch.number, epoch.validation["loss"]) for epoch in epochs if math.isfinite(epoch.validation.get("loss", math.nan))]

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        marker = "o" if len(numbers) <= 4 * MOST_MARKS else ""
        axes.plot(numbers, [epoch.train_loss for epoch in epochs], color=TRAIN.light, marker=marker, markersize=5)
        if validated:
            axes.plot(*zip(*validated, strict=True), color=VALIDATION.light, linestyle=(0, (5, 2)), marker=marker and "s", markersize=5)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
        axes.set_xlim(numbers[0] - 0.3, numbers[-1] + 0.3)
        name_axes(axes, x="epoch", y="loss")

    last = epochs[-1]
    best = min(validated, key=lambda item: item[1], default=None)
    words = f"lowest validation loss {metric(best[1])} after epoch {best[0]}" if best else "no validation"
    return Picture(
        name="loss-epochs", title="Train and validation loss, epoch by epoch",
        svg=draw(paint, name="loss-epochs", label=f"Loss by epoch: train loss {metric(last.train_loss)} in epoch {last.number}; {words}."),
        legend=(LegendEntry("train", TRAIN), *([LegendEntry("validation", VALIDATION, "dashed")] if validated else [])),
        caption=f"{words[0].upper()}{words[1:]}. The train loss is the mean over the epoch's steps, the validation loss that of the model "
                "at its end.")


def _time_by_rank(facts: RunFacts) -> Picture:
    mean = facts.mean_time
    words = "No step has ended yet."
    if mean.steps:
        data, compute, comm = (share(part / mean.steps) for part in (mean.data, mean.compute, mean.comm))
        words = f"Of the time inside training steps: {data} data, {compute} compute, {comm} communication."
    return Picture(
        name="time-ranks", title="Where each rank's time went",
        svg=draw(partial(_paint_ranks, facts.times), name="time-ranks", label=f"Stacked bars, seconds of each rank. {words}",
                 height=100 + 34 * max(2, len(facts.times))),
        legend=(*_SPENT, LegendEntry("other", OTHER, "box")),
        caption=f"{words} Other: validation and checkpoints.")


def _paint_ranks(times: Sequence[RankTime], figure: Figure) -> None:
    axes = figure.add_subplot()
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    places = range(len(times))
    left = [0.0] * len(times)
    for name, shade in (("data", DATA), ("compute", COMPUTE), ("comm", COMM), ("other", OTHER)):
        widths = [getattr(bar.seconds, name) for bar in times]
        axes.barh(places, widths, left=left, height=0.62, color=shade.light)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    longest = max(left) or 1.0
    for place, total in zip(places, left, strict=True):
        axes.text(total + 0.015 * longest, place, duration(total), va="center", fontsize=10.5, color=MUTED.light)
    axes.set_yticks(list(places), [bar.label for bar in times])
    axes.set(xlim=(0, 1.2 * longest), ylim=(len(times) - 0.5, -0.5), xlabel="seconds")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))


def _time_by_step(times: StepTimes) -> Picture:
    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        layers = [[1000 * seconds for seconds in part] for part in (times.data, times.compute, times.comm)]
        axes.stackplot(times.x, *layers, colors=[key.shade.light for key in _SPENT], linewidth=0)
        totals = sorted(sum(step) for step in zip(*layers, strict=True))
        usual = totals[19 * len(totals) // 20] or 1.0
        axes.set_ylim(0, 1.05 * min(totals[-1] or 1.0, 1.3 * usual))  # a slow first step must not flatten all others
        count_axis(axes, highest=times.x[-1])
        name_axes(axes, x="step", y="milliseconds a step")

    return Picture(
        name="time-steps", title="Time of a step, over the run",
        svg=draw(paint, name="time-steps", label="Stacked areas: milliseconds of a step in data, compute and communication, over the run."),
        legend=_SPENT, caption="Mean over the ranks, smoothed. Much slower steps, such as the first, are cut off at the top.")


def _throughput(throughput: Curve, mean: float) -> Picture:
    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.plot(throughput.x, throughput.y, color=NETWORK.light)
        axes.fill_between(throughput.x, throughput.y, color=NETWORK.light, alpha=0.12, linewidth=0)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
        count_axis(axes, highest=throughput.x[-1])
        name_axes(axes, x="step", y="rows a second")

    return Picture(
        name="throughput", title="Rows a second, over the run",
        svg=draw(paint, name="throughput", label=f"Rows of all ranks together per second: {count(mean)} over the whole run."),
        caption=f"All ranks together, inside training steps: {count(mean)} rows a second over the whole run.")
