"""``sparkring schedule``: every worker's actions in a step, drawn and exported; as planned or, for a run, beside the measured step.

    planned      by a schedule's name, or from a file of lists; the caller gives the times of passes
    of a run     the step whose times its ranks recorded last: the same lists played with the measured times, and the step itself

Starts no ranks and reads no rows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkring.conf.schema import Config, TrainConfig
from sparkring.errors import ConfigError, DocumentDamaged, SparkringError
from sparkring.output_file import require_writable_file
from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.files import schedule_from_csv, schedule_to_csv, trace_json
from sparkring.pipelines.parallel.schedules.generators.catalogue import SCHEDULE_NAMES, build_schedule
from sparkring.pipelines.parallel.schedules.memory import peak_activations
from sparkring.pipelines.parallel.schedules.schedule import COMPUTE, Kind, Schedule, check_shape
from sparkring.pipelines.parallel.schedules.simulator import WorkerTimings, idle_shares, simulate
from sparkring.spark_jobs.reporting.facts.words import duration, several
from sparkring.spark_jobs.reporting.schedule_text import draw_entries

if TYPE_CHECKING:
    from sparkring.spark_jobs.reporting.facts.step import StepFacts

PLAN, MEASURED = "plan", "measured"
CSV = ".csv"
MOST_TICKS = 8
"""Most columns of the longest pass in a text drawing; a much shorter pass may then have none."""
_MEANINGS = {Kind.F: "F forward", Kind.B: "B backward", Kind.I: "I gradients of the inputs", Kind.W: "W gradients of the weights"}


@dataclass(frozen=True, kw_only=True)
class PassTimes:
    """Milliseconds of a stage per micro-batch. The chunks of a stage share them; a stage's work is proportional to its replicas."""

    forward_ms: float = 10.0
    backward_ms: float = 20.0
    """The whole backward pass; its halves take half each."""
    message_ms: float = 0.0
    """Time from one stage to the next, during which neither is busy."""


DEFAULT_TIMES = PassTimes()


@dataclass(frozen=True, kw_only=True)
class TracedStep:
    """One step of a schedule, with its timelines."""

    title: str
    schedule: Schedule
    tracks: Mapping[str, WorkerTimings]
    """``plan`` and, for a run, ``measured``."""


@dataclass(frozen=True, kw_only=True)
class WorkerLoad:
    """Idle time and memory of one worker (a replica of a stage)."""

    worker: str
    """Stage and replica, e.g. ``1.0``."""
    idle: Mapping[str, float]
    """Share of the passes' time in which it is idle, planned and measured."""
    in_flight: int
    """The most micro-batches, over all its chunks, whose activations it holds at once."""


@dataclass(frozen=True, kw_only=True)
class ScheduleResult:
    """Figures of one step."""

    title: str
    schedule: str
    replicas: tuple[int, ...]
    chunks_per_stage: int
    micro_batches: int
    seconds: Mapping[str, float]
    """Seconds of the step, planned and measured."""
    idle: Mapping[str, float]
    """Mean idle share over the workers; in the plan this is the bubble."""
    workers: tuple[WorkerLoad, ...]
    out: str | None = None
    """File that was written."""


def planned(name: str, *, replicas: Sequence[int], micro_batches: int | None = None, chunks_per_stage: int | None = None,
            times: PassTimes = DEFAULT_TIMES) -> TracedStep:
    """Play a schedule by its name.

    Args:
        name: ``gpipe``, ``1f1b``, ``interleaved`` or ``zero_bubble``.
        replicas: Number of replicas of each stage.
        micro_batches: Micro-batches of the step, over all replicas; default: training's default.
        chunks_per_stage: Chunks of a stage in an interleaved schedule; default: 2.
        times: Times of passes and messages.
    Raises:
        ConfigError: there is no such schedule, or it does not allow this shape.
    """
    chunks = chunks_per_stage or (2 if name == "interleaved" else 1)
    check_shape(replicas, 1 if micro_batches is None else micro_batches)
    if micro_batches is None:
        micro_batches = TrainConfig.model_validate({"num_ranks": sum(replicas), "parallel": {"replicas": list(replicas)}}).num_micro_batches
    return _played(build_schedule(name, replicas, micro_batches, chunks_per_stage=chunks), times)


def compare(replicas: Sequence[int], *, micro_batches: int | None = None, chunks_per_stage: int | None = None,
            times: PassTimes = DEFAULT_TIMES) -> list[ScheduleResult]:
    """Figures of all schedules that allow the shape; arguments as in ``planned``."""
    names = [name for name in SCHEDULE_NAMES if name != "interleaved" or len(set(replicas)) == 1]
    return [figures(planned(name, replicas=replicas, micro_batches=micro_batches, times=times,
                            chunks_per_stage=chunks_per_stage if name == "interleaved" else None)) for name in names]


def from_file(path: Path, *, times: PassTimes = DEFAULT_TIMES) -> TracedStep:
    """Check and play the lists of a CSV file, as ``export`` writes it, perhaps edited by hand.

    Raises:
        ConfigError: the file cannot be read.
        ScheduleInvalid: the lists are no schedule; the message names the mistakes.
        ScheduleStuck: the lists wait for each other; the message names each waiting worker and action.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text ({error}); write such a file with "
                          "`sparkring schedule 1f1b --out mine.csv`.") from None
    return _played(schedule_from_csv(text), times)


def of_run(config: Config) -> TracedStep:
    """The last step of a pipelined run whose times all its workers recorded.

    Raises:
        ConfigError: there is none.
        DocumentDamaged: its record cannot be read.
    """
    from sparkring.spark_jobs.run.place import with_existing_run  # needs a store, and a schedule that is planned does not

    config = with_existing_run(config)
    try:
        step = _last_step(config)
    except SparkringError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise DocumentDamaged("the run's event stream", found=f"a step that cannot be read ({type(error).__name__}: {error})",
                              expected="the actions of each worker", remedy="train on, and draw a later step") from None
    if step is None:
        raise ConfigError(f"the run in {config.run_url} has recorded no step in stages; train with several stages "
                          "(train.parallel.replicas) to the second step of an epoch.")
    return TracedStep(title=f"step {step.number} of epoch {step.epoch}, {_shape(step.schedule)}", schedule=step.schedule,
                tracks={PLAN: step.plan, MEASURED: step.measured})


def _last_step(config: Config) -> StepFacts | None:
    from sparkring.pipelines.training.events.writer import read_events
    from sparkring.spark_jobs.reporting.facts.step import Timelines

    timelines = Timelines()
    for record in read_events(config.run_url):
        if record["event"] == "timeline":
            timelines.add(record)
    return timelines.last_step()


def figures(step: TracedStep, *, out: Path | None = None) -> ScheduleResult:
    """Seconds of the step, and idle time and memory of its workers."""
    schedule = step.schedule
    idle = {name: idle_shares(entries) for name, entries in step.tracks.items()}
    costs = Costs.equal(schedule.num_chunks)  # only micro-batches are counted
    loads = tuple(WorkerLoad(worker=str(worker), idle={name: shares[worker] for name, shares in idle.items()},
                             in_flight=peak_activations(schedule, costs, worker).micro_batches) for worker in schedule.workers)
    return ScheduleResult(
        title=step.title, schedule=schedule.name, replicas=schedule.replicas, micro_batches=schedule.micro_batches,
        chunks_per_stage=schedule.num_chunks // schedule.num_stages,
        seconds={name: _end_s(entries) for name, entries in step.tracks.items()},
        idle={name: statistics.fmean(shares.values()) for name, shares in idle.items()}, workers=loads, out=str(out) if out else None)


def drawing(step: TracedStep, *, width: int | None = None) -> str:
    """The step drawn in letters, the plan above the measured step, on one time scale.

    Args:
        step: The step.
        width: The most characters of a line; longer drawings continue below.
    """
    tick_s = _tick_s(step)
    panels = []
    for name, entries in step.tracks.items():
        head = [f"{name}, {plainly(duration(_end_s(entries)))}:"] if len(step.tracks) > 1 else []
        panels.append("\n".join([*head, draw_entries(step.schedule, entries, tick_s=tick_s, width=width)]))
    kinds = {action.kind for actions in step.schedule.actions.values() for action in actions}
    letters = ", ".join(text for kind, text in _MEANINGS.items() if kind in kinds)
    chunks = " (micro-batch/chunk)" if step.schedule.num_chunks > step.schedule.num_stages else " (micro-batch)"
    return "\n\n".join([*panels, f"{letters}{chunks}; .. waits, == continues; a column is {plainly(duration(tick_s))}"])


def export(step: TracedStep, path: Path, *, width: int | None = None) -> None:
    """Write a step in the format of the file's ending.

    Args:
        step: The step.
        path: ``.csv``: the lists; ``.json``: a trace for Perfetto or chrome://tracing; ``.svg`` and ``.txt``: the drawing.
        width: As in ``drawing``.
    Raises:
        ConfigError: the file has another ending.
    """
    writers: dict[str, Callable[[], str]] = {
        CSV: lambda: schedule_to_csv(step.schedule), ".json": lambda: trace_json(step.tracks), ".svg": lambda: _svg(step),
        ".txt": lambda: f"{drawing(step, width=width)}\n"}
    if path.suffix not in writers:
        raise ConfigError(f"--out {path} ends in {path.suffix!r}; name a file that ends in {', '.join(writers)}.")
    text = writers[path.suffix]()
    require_writable_file(path)
    path.write_text(text, encoding="utf-8")


def plainly(text: str) -> str:
    """Replace no-break spaces by plain ones, for terminals of any encoding."""
    return text.replace("\u00a0", " ")


def _played(schedule: Schedule, times: PassTimes) -> TracedStep:
    says = (f"F {times.forward_ms:g} ms and B {times.backward_ms:g} ms per stage, "
            f"messages take {f'{times.message_ms:g} ms' if times.message_ms else 'no time'}")
    return TracedStep(title=f"{_shape(schedule)}; {says}", schedule=schedule,
                      tracks={PLAN: simulate(schedule, _costs(schedule, times)).entries})


def _costs(schedule: Schedule, times: PassTimes) -> Costs:
    """Costs with which all stages keep the same pace: work is in proportion to replicas."""
    parts = math.gcd(*schedule.replicas) * schedule.num_chunks // schedule.num_stages
    works = [schedule.replicas[chunk % schedule.num_stages] / parts / 1000 for chunk in range(schedule.num_chunks)]
    forward, backward = ([each * work for work in works] for each in (times.forward_ms, times.backward_ms))
    half, hops = [each / 2 for each in backward], [times.message_ms / 1000] * (schedule.num_chunks - 1)
    return Costs(forward_s=forward, backward_s=backward, input_s=half, weight_s=half, hop_forward_s=hops, hop_backward_s=hops)


def _shape(schedule: Schedule) -> str:
    replicas = "" if set(schedule.replicas) == {1} else f" of {'+'.join(map(str, schedule.replicas))} replicas"
    chunks = schedule.num_chunks // schedule.num_stages
    return (f"{schedule.name} over {several(schedule.num_stages, 'stage')}{replicas}{f', {chunks} chunks each' if chunks > 1 else ''}, "
            f"{schedule.micro_batches} micro-batch{'' if schedule.micro_batches == 1 else 'es'}")


def _tick_s(step: TracedStep) -> float:
    """Seconds of a column: the plan's shortest pass, or a part of its longest if that is much longer."""
    passes = [entry.end_s - entry.start_s for done in step.tracks[PLAN].values() for entry in done if entry.action.kind in COMPUTE]
    passes = [seconds for seconds in passes if seconds > 0] or [1.0]
    return max(min(passes), max(passes) / MOST_TICKS)


def _end_s(entries: WorkerTimings) -> float:
    return max((entry.end_s for done in entries.values() for entry in done), default=0.0)


def _svg(step: TracedStep) -> str:
    from sparkring.spark_jobs.reporting.charts.schedule import schedule_picture
    from sparkring.spark_jobs.reporting.charts.step import MOST_ACTIONS
    from sparkring.spark_jobs.reporting.charts.svg import as_file

    actions = sum(map(len, step.schedule.actions.values()))
    if actions > MOST_ACTIONS:
        raise ConfigError(f"a step of {actions:,} actions is too large for a picture (at most {MOST_ACTIONS:,}); use fewer "
                          "micro-batches, or export a trace (.json).")
    return as_file(schedule_picture(step.schedule, plan=step.tracks[PLAN], measured=step.tracks.get(MEASURED), name="step").svg)
