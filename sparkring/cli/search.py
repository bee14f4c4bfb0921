"""The command ``sparkring search``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from sparkring.cli.terminal.answers import DEFAULT_CONFIG, AsJson, ConfigName, Overrides, examples, print_table, show_json
from sparkring.cli.terminal.console import console_progress
from sparkring.conf.loading import load_config

if TYPE_CHECKING:
    from sparkring.spark_jobs.searching.search import SearchResult
    from sparkring.spark_jobs.searching.trials import Trial

SHOWN = 20
"""Trials of the printed table."""

commands = typer.Typer()


@commands.command(epilog=examples("sparkring search my.yaml", "sparkring search my.yaml --set search.trials=50",
                                  "sparkring search my.yaml --set train.num_ranks=1 --set search.at_once=4"))
def search(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Train with several values of the keys that search.space names, several rings at once, and name the best run.

    Each trial is a run of its own on train.num_ranks slots; as many train at once as there are slots for. A trial that leads nowhere ends
    after an epoch. The same command resumes a search that was cut off, and a larger search.trials continues it. A page shows all trials.
    """
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.recovery.stop import stop_on_signals
    from sparkring.spark_jobs.searching.search import search as run_search

    with stop_on_signals() as stop:
        result = run_search(loaded, progress=console_progress(), stop=stop)
    if as_json:
        show_json({"best": result.best.model_dump() if result.best else None, "metric": result.metric, "at_once": result.at_once,
                   "seconds": result.seconds, "url": result.url, "page": result.page,
                   "trials": [trial.model_dump() for trial in result.trials]})
        return
    _print(result, str(config))


def _print(result: SearchResult, config: str) -> None:
    """The best trials first, what to do with the best, and the page."""
    from sparkring.spark_jobs.searching.trials import ranked

    print_table(["trial", result.metric, "state", "epochs", "took", "values", "run"],
                [_row(trial) for trial in ranked(result.trials, result.metric)[:SHOWN]])
    if result.best is None:
        typer.echo("no trial was trained to its end; give search.pruner=none, or more search.trials")
    else:
        typer.echo(f"best: trial {result.best.number}, {result.metric} {result.best.value:.4f}, run {result.best.run}\n"
                   f"use it: sparkring evaluate {config} --set run={result.best.run}")
    typer.echo(result.page)


def _row(trial: Trial) -> list[str]:
    from sparkring.spark_jobs.searching.page import value_text

    values = ", ".join(f"{key}={value_text(value)}" for key, value in trial.params.items())
    return [str(trial.number), "" if trial.value is None else f"{trial.value:.4f}", trial.state, str(len(trial.epochs)),
            f"{trial.seconds:.1f} s", values, trial.run]
