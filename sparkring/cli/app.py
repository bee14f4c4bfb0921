"""All commands as one typer application.

Results go to stdout, progress to stderr. Commands import their job after they have checked the config, so help and config errors appear at
once. Not here: exit codes and Ctrl-C (sparkring/__main__.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparkring.cli import chaos, compare, cross_validate, demo, doctor, ingest, init, jobs, plan, retrain, schedule, search, submit, text
from sparkring.cli.stored import audit, checkpoints, datasets, models, runs
from sparkring.version import __version__

Networks = Annotated[list[Path] | None, typer.Option(
    "--networks", metavar="FILE.py",
    help="A file that registers networks of your own (@sparkring.network). Goes before the command; may be repeated.")]

PANELS = {
    "Start here": (doctor, demo, init),
    "The main job": (jobs, text),
    "Night after night": (ingest, retrain, models),
    "What is stored": (runs, datasets, checkpoints, audit),
    "Layouts, strategies, searches, clusters and faults": (plan, compare, search, cross_validate, schedule, submit, chaos)}
"""The commands' modules by the panel of the help that shows them, in its order."""

app = typer.Typer(
    name="sparkring", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with `sparkring doctor`, then `sparkring demo`. Each command has its own help: `sparkring train --help`.")
for panel, modules in PANELS.items():
    for module in modules:
        for command in (*module.commands.registered_commands, *module.commands.registered_groups):
            command.rich_help_panel = panel
        app.add_typer(module.commands)


@app.callback(invoke_without_command=True)
def sparkring(context: typer.Context,
              version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
              networks: Networks = None) -> None:
    """Train PyTorch models with Horovod where Spark keeps the data.

    CONFIG is a shipped name or your own YAML file; --set changes any value in it.
    """
    if version:
        typer.echo(f"sparkring {__version__}")
        raise typer.Exit
    context.obj = tuple(networks or ())
    for file in context.obj:
        from sparkring.cli.terminal.network_files import register_file

        register_file(file)
