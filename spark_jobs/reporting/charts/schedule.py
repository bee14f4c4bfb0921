"""Draw a schedule: the plan above, the measurement below, on one time axis. Pure: entries in, markup out.

A row is a worker, a cell is an action with the number of its micro-batch; pale parts are idle. Later chunks of an interleaved
schedule are lighter. Transfers that take time are thin bars at the foot of a row.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sparkring.pipelines.parallel.schedules.schedule import COMPUTE, TRANSFERS, Kind, Schedule, Worker
from sparkring.pipelines.parallel.schedules.simulator import TimedAction, WorkerTimings, idle_shares
from sparkring.spark_jobs.reporting.charts.canvas import WIDE, Picture, draw
from sparkring.spark_jobs.reporting.charts.palette import (
    BACKWARD,
    COMM,
    FORWARD,
    GRID,
    INK,
    INPUT_GRADIENT,
    MUTED,
    ON_FILL,
    OTHER,
    WEIGHT_GRADIENT,
    Shade,
)
from sparkring.spark_jobs.reporting.facts.words import duration, several, share

_LOOKS: Mapping[Kind, tuple[str, Shade]] = {
    Kind.F: ("forward", FORWARD), Kind.B: ("backward", BACKWARD), Kind.I: ("gradient of the input", INPUT_GRADIENT),
    Kind.W: ("gradients of the weights", WEIGHT_GRADIENT), Kind.REDUCE: ("sum over replicas", COMM), Kind.STEP: ("optimizer", OTHER)}

_ROW, _PANEL, _FOOT = 23, 30, 34
"""Units of height: a worker's row, a panel's head, the axis."""
_MARGIN = 64
"""Approximate units left of the rows."""
_CELL, _HEIGHT_OF_CELL, _FONT = 0.9, 0.8, 9.0
"""Units between cells; share of a row that a cell fills; units of a label's height, at most."""
_LETTER = 0.66
"""A digit's width over its height."""
_SMALLEST_FONT = 5.5


@dataclass(frozen=True)
class _Panel:
    title: str
    entries: WorkerTimings
    end_s: float


def schedule_picture(schedule: Schedule, *, plan: WorkerTimings, measured: WorkerTimings | None = None, name: str = "schedule") -> Picture:
    """Draw one step.

    Args:
        schedule: The schedule of the entries.
        plan: Simulated times, ``simulate(...).entries``.
        measured: An executor's records from the start of the step; a worker without records stays pale. None draws the plan alone.
        name: The picture's name; unique within a page.
    """
    panels = [_Panel("plan", plan, _end_s(plan))] + ([_Panel("measured", measured, _end_s(measured))] if measured is not None else [])
    longest_s = max(panel.end_s for panel in panels) or 1.0
    font = _font(schedule, panels, longest_s)
    words = "; ".join(f"{panel.title} {duration(panel.end_s)}, {share(_idle(panel.entries))} idle" for panel in panels)

    def paint(figure: Figure) -> None:
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for place, (panel, rows) in enumerate(zip(panels, axes, strict=True)):
            _paint_panel(rows, schedule, panel, longest_s, font)
            rows.tick_params(labelbottom=place == len(panels) - 1)
        _legend(axes[0], [kind for kind in _LOOKS if any(_has(panel.entries, kind) for panel in panels)])
        _time_axis(axes[-1], longest_s)

    rows = len(schedule.workers)
    label = (f"Timeline of one step of schedule {schedule.name}: {several(schedule.num_stages, 'stage')}, {several(rows, 'worker')}, "
             f"{schedule.micro_batches} micro-batches. {words}.")
    svg: Markup = draw(paint, name=name, label=label, height=len(panels) * (_ROW * rows + _PANEL) + _FOOT, width=WIDE)
    return Picture(name=name, title="One step, worker by worker", svg=svg,
                   caption=f"{words[0].upper()}{words[1:]}. Numbers are micro-batches; pale parts are idle, with a line below "
                           "while a worker waits for a transfer.")


def _end_s(entries: WorkerTimings) -> float:
    return max((entry.end_s for worker in entries.values() for entry in worker), default=0.0)


def _idle(entries: WorkerTimings) -> float:
    """Share of the time until the last computation ends in which workers compute nothing."""
    return statistics.fmean(idle_shares(entries).values()) if entries else 0.0


def _has(entries: WorkerTimings, kind: Kind) -> bool:
    return any(entry.action.kind is kind and entry.end_s > entry.start_s for worker in entries.values() for entry in worker)


def _font(schedule: Schedule, panels: Sequence[_Panel], longest_s: float) -> float:
    """Height of the numbers, so that the longest fits nine cells of ten; 0 if that would be too small to read."""
    widths = sorted((WIDE - _MARGIN) / longest_s * (entry.end_s - entry.start_s) for panel in panels for worker in panel.entries.values()
                    for entry in worker if entry.action.kind in COMPUTE)
    narrow = widths[len(widths) // 10] if widths else 0.0
    font = min(_FONT, (narrow - 2 * _CELL) / (_LETTER * len(str(schedule.micro_batches - 1))))
    return font if font >= _SMALLEST_FONT else 0.0


def _paint_panel(axes: Axes, schedule: Schedule, panel: _Panel, longest_s: float, font: float) -> None:
    units_a_second = (WIDE - _MARGIN) / longest_s
    for place, worker in enumerate(schedule.workers):
        axes.broken_barh([(0, panel.end_s)], (place - _HEIGHT_OF_CELL / 2, _HEIGHT_OF_CELL), facecolor=GRID.light, alpha=0.55, linewidth=0)
        _paint_worker(axes, schedule, place, panel.entries.get(worker, ()), units_a_second, font)
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    axes.set_yticks(range(len(schedule.workers)), [_label(schedule, worker) for worker in schedule.workers])
    axes.set(xlim=(0, longest_s), ylim=(len(schedule.workers) - 0.5, -0.5))
    axes.set_title(f"{panel.title}, {duration(panel.end_s)}", loc="left", fontsize=11.5, color=MUTED.light, x=0.0)


def _paint_worker(axes: Axes, schedule: Schedule, place: int, entries: Sequence[TimedAction], units_a_second: float, font: float) -> None:
    gap_s = _CELL / units_a_second
    chunks = schedule.num_chunks // schedule.num_stages
    for kind, (_, shade) in _LOOKS.items():
        for turn in range(chunks if kind in COMPUTE else 1):
            spans = [(entry.start_s, max(entry.end_s - entry.start_s - gap_s, gap_s / 2)) for entry in entries
                     if entry.action.kind is kind and entry.action.chunk // schedule.num_stages == turn and entry.end_s > entry.start_s]
            if spans:
                axes.broken_barh(spans, (place - _HEIGHT_OF_CELL / 2, _HEIGHT_OF_CELL), facecolor=shade.light, alpha=_alpha(turn, chunks),
                                 linewidth=0)
    moved = [(entry.start_s, entry.end_s - entry.start_s) for entry in entries
             if entry.action.kind in TRANSFERS and entry.end_s > entry.start_s]
    if moved:
        axes.broken_barh(moved, (place + _HEIGHT_OF_CELL / 2 - 0.1, 0.1), facecolor=COMM.light, linewidth=0)
    for entry in entries if font else ():
        if entry.action.kind not in COMPUTE:
            continue
        pale = _alpha(entry.action.chunk // schedule.num_stages, chunks) < 0.6
        axes.text((entry.start_s + entry.end_s - gap_s) / 2, place, str(entry.action.micro_batch), ha="center", va="center_baseline",
                  fontsize=font, color=(INK if pale else ON_FILL).light)


def _alpha(turn: int, chunks: int) -> float:
    """Full for the first chunk of a worker, 0.35 for the last."""
    return 1.0 - 0.65 * turn / (chunks - 1) if chunks > 1 else 1.0


def _label(schedule: Schedule, worker: Worker) -> str:
    alone = set(schedule.replicas) == {1}
    return f"stage {worker.stage}" if alone else f"stage {worker}"


def _legend(axes: Axes, kinds: Sequence[Kind]) -> None:
    """At the right of the first panel's head."""
    boxes = [Patch(facecolor=_LOOKS[kind][1].light, linewidth=0) for kind in kinds]
    axes.legend(boxes, [_LOOKS[kind][0] for kind in kinds], loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=max(len(kinds), 1),
                fontsize=10, frameon=False, handlelength=0.9, handleheight=0.9, handletextpad=0.4,
                columnspacing=1.4, borderaxespad=0, borderpad=0.25)


def _time_axis(axes: Axes, longest_s: float) -> None:
    scale, unit = (1000.0, "milliseconds") if longest_s < 1 else (1.0, "seconds")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * scale:g}"))
    axes.set_xlabel(unit)
