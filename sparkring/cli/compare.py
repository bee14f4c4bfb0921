"""The command ``sparkring compare``."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkring.cli.terminal.answers import DEFAULT_CONFIG, AsJson, ConfigName, Overrides, examples, print_table, show_json
from sparkring.cli.terminal.console import console_progress
from sparkring.conf.loading import load_config

commands = typer.Typer()

Strategies = Annotated[str, typer.Option("--strategies", metavar="NAME[:NUMBER],...", help=(
    "The strategies, with commas between them: exact, local_sgd:STEPS between two exchanges, stale_sync:BOUND of staleness."))]


@commands.command(epilog=examples("sparkring compare local/flights", "sparkring compare my.yaml --strategies exact,local_sgd:4,local_sgd",
                                  "sparkring compare my.yaml --strategies exact,stale_sync:8 --set train.num_ranks=4"))
def compare(config: ConfigName = DEFAULT_CONFIG, strategies: Strategies = "exact,local_sgd:8,stale_sync:4", overrides: Overrides = None,
            as_json: AsJson = False) -> None:
    """Train by several strategies on the same rows from the same start, and lay loss, time and bytes sent side by side.

    Each is a run of its own; one that is done already, on as many ranks with the same ring, is reused. Writes comparison.html into the
    workspace.
    """
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.comparing.compare import compare as run_compare
    from sparkring.spark_jobs.recovery.stop import stop_on_signals
    from sparkring.spark_jobs.reporting.facts.words import count, duration, metric, size

    with stop_on_signals() as stop:
        result = run_compare(loaded, strategies=strategies, progress=console_progress(), stop=stop)
    if as_json:
        curves = {"by_step", "by_second", "by_megabyte"}
        show_json({"runs": [{key: value for key, value in (vars(run) | {"loss": run.loss if run.learned else None}).items()
                             if key not in curves} for run in result.runs],
                   "verdict": result.verdict, "page": result.page})
        return
    print_table(["strategy", "ranks", "steps", "took", "sent", "train loss", "held out", "staleness", "run"], [
        [run.strategy, run.ring, count(run.steps), duration(run.seconds), size(run.sent_bytes), metric(run.loss),
         ", ".join(f"{name} {value:.4f}" for name, value in list(run.held_out.items())[:2]),
         "" if run.staleness is None else f"{run.staleness:.2f}", run.run] for run in result.runs])
    typer.echo("\n".join([*(run.note for run in result.runs if run.note), result.verdict, "", result.page]))
