"""The commands ``sparkring runs list | show | compare | remove``: the runs of a workspace, side by side."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkring.cli.terminal.answers import DEFAULT_CONFIG, AsJson, ConfigName, Overrides, examples, print_table, show, show_json
from sparkring.conf.loading import load_config

if TYPE_CHECKING:
    from sparkring.spark_jobs.stored.runs import RunSummary

commands = typer.Typer()
runs = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
commands.add_typer(runs, name="runs")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The run's name, as `sparkring runs list` shows it.")]


@runs.callback()
def _runs() -> None:
    """List the runs of a workspace, show and compare them, and remove one."""


@runs.command("list", epilog=examples("sparkring runs list", "sparkring runs list my.yaml"))
def list_(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """List the runs of the config's workspace, oldest first.

    done: trained to the end. running: a process trains it now. ended: it stopped earlier; the same sparkring train resumes it.
    """
    url = load_config(config, overrides or []).runs
    from sparkring.spark_jobs.stored.runs import list_runs

    found = list_runs(url)
    if as_json:
        show_json([dataclasses.asdict(each) for each in found])
    elif not found:
        typer.echo(f"{url} holds no run yet")
    else:
        print_table(["run", "dataset", "state", "epochs", "held out", "age"], [
            [each.name, _version(each), each.state, f"{each.epochs} of {each.of_epochs}",
             _figures(dict(list(each.validation.items())[:2])), _age(each.created_at)] if each.state != "damaged"
            else [each.name, "", each.state, "", each.problem, ""] for each in found])


@runs.command("show", epilog=examples("sparkring runs show local/flights v1-1f3a9c07"))
def show_(config: ConfigName, name: Name, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Show a run: its dataset, its state, its metrics, and the settings that made it."""
    url = load_config(config, overrides or []).runs
    from sparkring.spark_jobs.stored.runs import show_run

    run = show_run(url, name)
    show(run, as_json=as_json, text=_text(run))


@runs.command("compare", epilog=examples("sparkring runs compare local/flights v1-1f3a9c07 wide"))
def compare(config: ConfigName, names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Two runs or more.")],
            overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Show the config keys in which runs differ, and their metrics side by side."""
    url = load_config(config, overrides or []).runs
    from sparkring.spark_jobs.stored.runs import compare_runs

    found = compare_runs(url, names)
    if as_json:
        show_json(dataclasses.asdict(found))
        return
    if found.differences:
        print_table(["key", *names], [[key, *map(str, values)] for key, values in found.differences.items()])
    else:
        typer.echo("the runs do not differ in what they learn\n")
    print_table(["metric", *names], [[metric, *("" if value is None else f"{value:.4f}" for value in values)]
                                     for metric, values in found.metrics.items()])


@runs.command("remove", epilog=examples("sparkring runs remove local/flights v1-1f3a9c07", "sparkring runs remove my.yaml wide --yes"))
def remove(config: ConfigName, name: Name, overrides: Overrides = None,
           yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> None:
    """Delete a run for good: its checkpoints, model, evaluation, scores and report. A run that is being trained is refused."""
    url = load_config(config, overrides or []).runs
    from sparkring.spark_jobs.stored.runs import remove_run, show_run

    if not yes:
        run = show_run(url, name)
        typer.confirm(f"Delete {run.url} ({run.state}, {run.epochs} of {run.of_epochs} epochs) for good?", abort=True, err=True)
    typer.echo(f"removed {remove_run(url, name)}")


def _version(run: RunSummary) -> str:
    """The dataset version, and the fold that validates if it is in folds."""
    return f"version {run.dataset_version}" + (f", fold {run.identity['fold']}" if "fold" in run.identity else "")


def _text(run: RunSummary) -> str:
    if run.state == "damaged":
        return f"run {run.name} at {run.url} is damaged: {run.problem}"
    return "\n".join([
        f"run {run.name} ({run.state}) at {run.url}",
        f"  dataset     {run.dataset_url} {_version(run)}",
        f"  begun       {run.created_at}, {_age(run.created_at)} ago",
        f"  trained     {run.epochs} of {run.of_epochs} epochs, {run.steps:,} steps",
        *([f"  validation  {_figures(run.validation)}"] if run.validation else []),
        *([f"  test        {_figures(run.test)}"] if run.test else []),
        *(f"  {key}: {value}" for section in ("model", "train") for key, value in _lines(run.identity.get(section, {}), section))])


def _lines(section: Mapping[str, Any], path: str) -> list[tuple[str, Any]]:
    return [(f"{path}.{key}", value) for key, value in section.items()]


def _figures(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def _age(created_at: str) -> str:
    """E.g. ``3 h``."""
    seconds = max(0.0, time.time() - datetime.fromisoformat(created_at).timestamp())
    unit, word = next((unit, word) for unit, word in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")) if seconds >= unit or unit == 1)
    return f"{seconds / unit:.0f} {word}"
