"""The command line: ``sparkring COMMAND [CONFIG] [--set key=value ...]``, a verb for each operation and no flag for a field.

Results go to stdout, progress to stderr. Exit codes: 0 done; 1 a check failed (``doctor``, ``chaos``, ``verify``); 2 a fault of the
input or the cluster, reported in one line; 130 ended by Ctrl-C; 143 ended by SIGTERM. ``train`` saves first in both cases. A bug keeps
its traceback. Commands import their job after they have checked the config, so help and config errors appear at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sparkring.cli import chaos, checkpoints, data, demo, doctor, jobs, plan, schedule, submit, text
from sparkring.cli.interrupt import INTERRUPTED, Interrupt
from sparkring.cli.quiet import silence_lost_jvm
from sparkring.errors import SparkringError, Stopped
from sparkring.version import __version__

FAULT = 2

Networks = Annotated[list[Path] | None, typer.Option(
    "--networks", metavar="FILE.py",
    help="A file that registers networks of your own (@sparkring.network). Goes before the command; may be repeated.")]

app = typer.Typer(
    name="sparkring", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with [bold]sparkring doctor[/], then [bold]sparkring demo[/]. Each command has its own help: "
           "[bold]sparkring train --help[/].")
for module in (demo, jobs, doctor, data, plan, schedule, checkpoints, chaos, submit, text):
    app.add_typer(module.commands)


def main() -> None:
    """Run the command line; a fault of the input or the cluster ends in one line, then a line for each note, and exit code 2."""
    silence_lost_jvm()
    interrupt = Interrupt()
    try:
        with interrupt.handled():
            app()
    except Stopped as stopped:
        _end(_with_notes(str(stopped), stopped), 128 + stopped.signal_number)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            _end("interrupted", INTERRUPTED)
        raise
    except Exception as error:
        if interrupt.asked:  # a cancelled job raises too
            _end("interrupted", INTERRUPTED)
        if not isinstance(error, SparkringError):
            raise
        _end(_with_notes(f"error: {error}", error), FAULT)


def _with_notes(line: str, error: BaseException) -> str:
    """The line, and below it the notes that were added to the error (PEP 678), each on its own line."""
    return "\n".join([line, *getattr(error, "__notes__", ())])


def _end(text: str, code: int) -> None:
    print(text, file=sys.stderr)  # noqa: T201 (not through rich: the traceback of a failed rank may be part of the text)
    sys.exit(code)


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
        from sparkring.cli.network_files import register_file

        register_file(file)


if __name__ == "__main__":
    main()
