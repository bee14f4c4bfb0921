"""The command ``sparkring plan``: a ranked table of layouts and the config section that asks for the best, measured or on paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkring.cli.terminal.answers import AsJson, ConfigName, Overrides, examples, show
from sparkring.cli.terminal.console import console_progress
from sparkring.conf.loading import load_config
from sparkring.errors import ConfigError

if TYPE_CHECKING:
    from sparkring.spark_jobs.plan import PlanResult, PlanRow

SHOWN = 12
"""Layouts of the printed table."""
MEMORY = "GB a rank, by stage"
LINK, DEVICE, RANKS_PER_HOST = "10Gb", "V100", 4
"""Defaults of the options on paper."""

commands = typer.Typer()


@commands.command(epilog=examples("sparkring plan local/flights", "sparkring plan my.yaml --world 512 --link 25Gb --device K80"))
def plan(config: ConfigName = "local/flights", overrides: Overrides = None, *,
         world: Annotated[int | None, typer.Option(help="Plan on paper for this many ranks; they need not exist.")] = None,
         link: Annotated[str | None, typer.Option(help=f"On paper: the link of a host, e.g. 25Gb or 3GB a second; default {LINK}.")] = None,
         device: Annotated[str | None, typer.Option(help=f"On paper: the device of a rank; default {DEVICE}.")] = None,
         ranks_per_host: Annotated[int | None, typer.Option(min=1, help=f"On paper: devices of a host; default {RANKS_PER_HOST}.")] = None,
         picture: Annotated[Path | None, typer.Option(help="On paper: file of the scaling curve; default plan.svg.")] = None,
         as_json: AsJson = False) -> None:
    """Predict the step of every layout of stages, replicas and schedule; name the layout with the shortest step and the reason.

    Measures blocks and links in a short ring of the config's ranks; with --world it computes from published figures and starts nothing.
    Needs a prepared dataset version, for the shapes of its rows.
    """
    loaded = load_config(config, overrides or [])
    if world is None:
        given = [name for name, value in (("--link", link), ("--device", device), ("--ranks-per-host", ranks_per_host),
                                          ("--picture", picture)) if value is not None]
        if given:
            raise ConfigError(f"{', '.join(given)} without --world: they describe machines on paper; add --world, or leave them out.")
        from sparkring.spark_jobs.plan import plan_measured

        result = plan_measured(loaded, progress=console_progress())
    else:
        from sparkring.pipelines.parallel.planner import paper
        from sparkring.spark_jobs.plan import plan_on_paper

        assumed = paper.Assumptions(device=paper.device(device or DEVICE), link_bytes_s=paper.link_bytes_s(link or LINK),
                                    ranks_per_host=ranks_per_host or RANKS_PER_HOST, bucket_bytes=loaded.train.bucket_mb * 1e6)
        result = plan_on_paper(loaded, assumed, world=world, picture=picture)
    show(result, as_json=as_json, text=_text(result))


def _text(result: PlanResult) -> str:
    """The table, the assumptions, and the section to paste."""
    head = f"{result.tried} layouts on up to {result.world} ranks, {result.batch_rows:,} rows a step; the best of each kind:"
    shown = result.rows[:SHOWN]
    broad = max(map(len, [MEMORY, *map(_memory, shown)]))
    lines = [head, f"  {'step':>9}  {MEMORY:>{broad}}  {'micro-batches':>13}  layout", *(_line(row, broad) for row in shown)]
    if len(result.rows) > SHOWN:
        lines.append(f"  and {len(result.rows) - SHOWN} more kinds (--json has them)")
    lines += ["assumptions:", *(f"  {line}" for line in result.assumptions)]
    if result.picture:
        lines.append(f"scaling curve at {result.picture}")
    suggestion = [f"  {line}" for line in result.suggestion.splitlines()]
    return "\n".join([*lines, *(["to use the best, put into the config:", *suggestion] if suggestion else ["no layout can be used"])])


def _line(row: PlanRow, broad: int) -> str:
    step = "-" if row.step_s is None else f"{row.step_s:.3g} s" if row.step_s >= 1 else f"{1e3 * row.step_s:.3g} ms"
    return f"  {step:>9}  {_memory(row):>{broad}}  {row.micro_batches:>13}  {row.layout}: {row.reason}"


def _memory(row: PlanRow) -> str:
    """GB of a rank of each stage, the first one first."""
    return " ".join(f"{size:.3g}" for size in row.memory_gb)
