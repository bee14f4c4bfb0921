"""The command ``sparkring schedule``: each worker's actions in a step of a model in stages, drawn in the terminal or written to a file."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sparkring.cli.terminal.answers import WIDTH, AsJson, Overrides, examples, show, show_json
from sparkring.conf.loading import load_config
from sparkring.errors import ConfigError

if TYPE_CHECKING:
    from sparkring.spark_jobs.schedule import PassTimes, ScheduleResult, TracedStep

STAGES = "4"
"""Default of ``--stages``."""
HELD = "micro-batches held at most"

commands = typer.Typer()

What = Annotated[str | None, typer.Argument(
    metavar="[NAME|FILE.csv|CONFIG]", show_default=False,
    help="gpipe, 1f1b, interleaved or zero_bubble; a file of lists; or a config, whose run is drawn. Default: all four are compared.")]
Stages = Annotated[str | None, typer.Option(metavar="N|N,N,...", help=f"Stages, or the replicas of each, e.g. 2,1; default {STAGES}.")]
MicroBatches = Annotated[int | None, typer.Option(min=1, help="Micro-batches of a step, over all replicas; default as in training.")]
Chunks = Annotated[int | None, typer.Option(min=1, help="Chunks of a stage in an interleaved schedule; default 2.")]
Times = Annotated[str | None, typer.Option(
    metavar="F,B,MESSAGE", help="Milliseconds of F and of B, a stage (I and W take half of B each), and of a message; default 10,20,0.")]
Out = Annotated[Path | None, typer.Option(
    metavar="FILE", help="Write .csv (the lists), .json (a trace for Perfetto or chrome://tracing), .svg or .txt (the drawing).")]


@commands.command(epilog=examples(
    "sparkring schedule --stages 4 --micro-batches 16", "sparkring schedule 1f1b --stages 4 --micro-batches 8",
    "sparkring schedule zero_bubble --stages 2,1 --out step.svg", "sparkring schedule 1f1b --out mine.csv",
    "sparkring schedule mine.csv --times 10,20,5", "sparkring schedule local/python-text --out step.json"))
def schedule(what: What = None, overrides: Overrides = None, *, stages: Stages = None, micro_batches: MicroBatches = None,
             chunks_per_stage: Chunks = None, times: Times = None, out: Out = None, as_json: AsJson = False) -> None:
    """Draw each worker's actions in a step of a model in stages, with the bubble and the micro-batches held; or write them to a file.

    With a NAME the schedule that training follows is played: F is the forward pass of a micro-batch, B its backward pass, I and W the two
    halves of one. The bubble is the share of the passes' time in which a worker waits. Without a name, all schedules are compared.

    FILE.csv holds lists as --out writes them, perhaps edited by hand. Incomplete lists, and lists that wait for each other, are refused
    with the place of the mistake. For a CONFIG whose run trained in stages, the last recorded step is drawn below its plan. Starts no
    ranks.
    """
    shape = {"--stages": stages, "--micro-batches": micro_batches, "--chunks-per-stage": chunks_per_stage}
    from sparkring.spark_jobs.schedule import export, figures, from_file, of_run, planned

    if what is not None and what.endswith(".csv"):
        _refuse(shape | {"--set": overrides}, f"{what} holds the whole schedule", "name a schedule instead of a file")
        step = from_file(Path(what), times=_times(times))
    elif what is not None and ("/" in what or "." in what):
        _refuse(shape | {"--times": times}, f"the run of {what} has its own values", "name a schedule instead of a config")
        step = of_run(load_config(what, overrides or []))
    else:
        _refuse({"--set": overrides}, "no config is read", "name a config whose run is to be drawn")
        replicas = _replicas(stages or STAGES)
        if what is None:
            _compare(replicas, micro_batches, chunks_per_stage, _times(times), out=out, as_json=as_json)
            return
        step = planned(what, replicas=replicas, micro_batches=micro_batches, chunks_per_stage=chunks_per_stage, times=_times(times))
    width = Console().width if sys.stdout.isatty() else WIDTH
    if out is not None:
        export(step, out, width=width)
    found = figures(step, out=out)
    show(found, as_json=as_json, text=_text(step, found, width))


def _refuse(given: Mapping[str, object], why: str, otherwise: str) -> None:
    """Refuse options that do not apply to the drawing."""
    wrong = [name for name, value in given.items() if value is not None]
    if wrong:
        raise ConfigError(f"{', '.join(wrong)} cannot be given here, since {why}; leave that out, or {otherwise}.")


def _replicas(text: str) -> tuple[int, ...]:
    """``4`` are four stages of one replica each, ``2,1`` two stages."""
    try:
        numbers = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ConfigError(f"--stages {text} is neither a number nor the replicas of each stage; give e.g. 4 or 2,1.") from None
    return (1,) * numbers[0] if len(numbers) == 1 else numbers


def _times(text: str | None) -> PassTimes:
    from sparkring.spark_jobs.schedule import DEFAULT_TIMES, PassTimes

    if text is None:
        return DEFAULT_TIMES
    try:
        forward, backward, message = (float(word) for word in text.split(","))
    except ValueError:
        forward = backward = message = -1.0
    if not (0 < forward < math.inf and 0 < backward < math.inf and 0 <= message < math.inf):
        raise ConfigError(f"--times {text} is not milliseconds of F, of B (both above 0) and of a message; give e.g. --times 10,20,0.")
    return PassTimes(forward_ms=forward, backward_ms=backward, message_ms=message)


def _compare(replicas: Sequence[int], micro_batches: int | None, chunks_per_stage: int | None, times: PassTimes, *,
             out: Path | None, as_json: bool) -> None:
    """Print one line for each schedule."""
    if out is not None:
        raise ConfigError(f"--out {out}: all schedules are compared; name the one to write (gpipe, 1f1b, interleaved, zero_bubble).")
    from sparkring.spark_jobs.schedule import compare

    found = compare(replicas, micro_batches=micro_batches, chunks_per_stage=chunks_per_stage, times=times)
    if as_json:
        show_json([dataclasses.asdict(one) for one in found])
        return
    head = found[0].title.partition(" ")[2]
    lines = [f"all schedules {head}", f"{'schedule':<12}  {'step':>8}  {'bubble':>7}  {HELD}, by worker"]
    lines += [f"{one.schedule:<12}  {_time(one.seconds['plan']):>8}  {one.idle['plan']:>7.1%}  {' '.join(_held(one))}" for one in found]
    typer.echo("\n".join([*lines, "`sparkring schedule NAME` with the same options draws one of them."]))


def _text(step: TracedStep, found: ScheduleResult, width: int) -> str:
    """The picture, unless it went into a file, and the figures of each worker."""
    from sparkring.spark_jobs.schedule import drawing

    whole = ", ".join(f"{name} {_time(seconds)}, {found.idle[name]:.1%} idle" for name, seconds in found.seconds.items())
    tracks = list(found.seconds)
    rows = [["worker", *(f"idle ({name})" for name in tracks), HELD]]
    rows += [[load.worker, *(f"{load.idle[name]:.1%}" for name in tracks), held]
             for load, held in zip(found.workers, _held(found), strict=True)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(cell.rjust(letters) for cell, letters in zip(row, widths, strict=True)) for row in rows]
    picture = ["", drawing(step, width=width), ""] if found.out is None else []
    return "\n".join([found.title, *picture, whole, *table, *([f"written to {found.out}"] if found.out else [])])


def _held(found: ScheduleResult) -> list[str]:
    """The most micro-batches that each worker holds; a micro-batch of one chunk counts as its part of the stage."""
    return [f"{load.in_flight / found.chunks_per_stage:g}" for load in found.workers]


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
