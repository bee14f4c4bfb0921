"""The command ``sparkring cross-validate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from sparkring.cli.terminal.answers import DEFAULT_CONFIG, AsJson, ConfigName, Overrides, examples, print_table, show
from sparkring.cli.terminal.console import console_progress
from sparkring.conf.loading import load_config

if TYPE_CHECKING:
    from sparkring.spark_jobs.cross_validating.cross_validate import CrossValidation

commands = typer.Typer()


@commands.command(name="cross-validate", epilog=examples(
    "sparkring cross-validate my.yaml", "sparkring cross-validate my.yaml --set train.num_ranks=1 --set cross_validate.at_once=4"))
def cross_validate(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Train once for each fold of a dataset version, several rings at once; mean and spread of the held-out metrics.

    The version must be in folds: prepared with prepare.split={by: fold, column: KEY, folds: 5}. Each fold is a run of its own that trains
    on all other folds and validates on this one. The same command resumes, and trains no fold again that is done. Writes
    cross-validation.json and cross-validation.html into the workspace.
    """
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.cross_validating.cross_validate import cross_validate as run_cross_validate
    from sparkring.spark_jobs.recovery.stop import stop_on_signals

    with stop_on_signals() as stop:
        result = run_cross_validate(loaded, progress=console_progress(), stop=stop)
    if as_json:
        show(result, as_json=True, text="")
    else:
        _print(result)


def _print(result: CrossValidation) -> None:
    """A line for each fold, and two for all of them."""
    from sparkring.spark_jobs.reporting.facts.words import count, metric

    names, found = list(result.metrics), result.metrics.values()
    spreads = [("mean", [each.mean for each in found]), ("deviation", [each.deviation for each in found])]
    print_table(["fold", "rows", "epochs", *names, "run"], [
        *([str(each.fold), count(each.rows), count(each.epochs), *(metric(each.metrics[name]) for name in names), each.run]
          for each in result.folds),
        *([title, "", "", *map(metric, values), ""] for title, values in spreads)])
    typer.echo(f"{result.document}\n{result.page}")
