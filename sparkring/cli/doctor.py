"""The command ``sparkring doctor``: each check, its finding, and the advice."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sparkring.cli.terminal.answers import DEFAULT_CONFIG, AsJson, ConfigName, Overrides, examples, show_json
from sparkring.cli.terminal.console import console_progress
from sparkring.conf.loading import load_config

if TYPE_CHECKING:
    from sparkring.spark_jobs.doctor import Check

commands = typer.Typer()


@commands.command(epilog=examples("sparkring doctor", "sparkring doctor yarn/flights"))
def doctor(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Check what a job of this config needs (Java, Python on executors, slots, Horovod, memory, disk, ports, GPUs).

    Says how to fix each problem; exits with 1 if one of them would stop a job.
    """
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.doctor import doctor as run_doctor

    checks = run_doctor(loaded, progress=console_progress())
    if as_json:
        show_json([dataclasses.asdict(check) for check in checks])
    else:
        _show_checks(checks)
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


def table_of(checks: list[Check]) -> Table:
    """The checks as a terminal shows them."""
    colour = {"ok": "green", "warn": "yellow", "fail": "red"}
    table = Table("", "check", "found", "what to do", box=None)
    for check in checks:
        table.add_row(f"[{colour[check.status]}]{check.status}", *map(escape, (check.name, check.found, check.advice)))
    return table


def _show_checks(checks: list[Check]) -> None:
    console = Console()
    if console.is_interactive:
        console.print(table_of(checks))
        return
    for check in checks:
        typer.echo(f"{check.status:<5} {check.name}: {check.found}" + (f" -> {check.advice}" if check.advice else ""))
