"""The command ``sparkring retrain``."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkring.cli.terminal.answers import DEFAULT_CONFIG, AsJson, ConfigName, Overrides, examples, show
from sparkring.cli.terminal.console import console_progress
from sparkring.conf.loading import load_config

CODES = {"promoted": 0, "kept": 10, "nothing new": 11, "busy": 12}
"""Exit codes with ``--exit-codes``."""

commands = typer.Typer()

ExitCodes = Annotated[bool, typer.Option("--exit-codes", help="Tell a scheduler the outcome by the exit code; without it each of these is "
                                                              "0: promoted 0, kept 10, nothing new 11, another process is at it 12.")]


@commands.command(epilog=examples("sparkring retrain my.yaml", "sparkring retrain my.yaml --exit-codes",
                                  "sparkring retrain my.yaml --set retrain.promote.when=better"))
def retrain(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, exit_codes: ExitCodes = False,
            as_json: AsJson = False) -> None:
    """Take what is new, train a candidate, compare it with the champion on the same held-out rows, and promote it or keep the champion.

    One command for cron, Airflow or a Databricks job. The section retrain says when a training is due and when a candidate is promoted.
    Whatever ended a call, the next one resumes it. Exit codes besides --exit-codes: 2 a fault, 3 the new rows break prepare.expectations,
    130 and 143 interrupted.
    """
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.recovery.stop import stop_on_signals
    from sparkring.spark_jobs.retrain import retrain as run_retrain

    with stop_on_signals() as stop:
        result = run_retrain(loaded, progress=console_progress(), stop=stop)
    champion = f"\nchampion: model version {result.champion}" if result.champion is not None else ""
    show(result, as_json=as_json, text=f"{result.outcome}: {result.reason}{champion}")
    if exit_codes:
        raise typer.Exit(CODES[result.outcome])
