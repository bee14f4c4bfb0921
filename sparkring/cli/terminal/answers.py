"""Shared by all commands: the config argument, and the answer on stdout, as text or as one line of JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sparkring.conf.loading import shipped_configs

DEFAULT_CONFIG = "local/flights"
WIDTH = 140
"""Width of tables that go to a file or a pipe."""

_TO_RUN = [name for name in shipped_configs() if not name.startswith("base/")]  # the others extend those of base
ConfigName = Annotated[str, typer.Argument(metavar="CONFIG", help=f"A YAML file, or a shipped config: {', '.join(_TO_RUN)}.")]
Overrides = Annotated[list[str] | None, typer.Option(
    "--set", metavar="KEY=VALUE", help="Change one value of the config, e.g. train.epochs=2. May be repeated; the last one wins.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON, and nothing else, on stdout.")]


def examples(*commands: str) -> str:
    """The last lines of a command's help."""
    return "\n".join(["Examples:\n", *(f"- `{command}`" for command in commands)])


def show(result: Any, *, as_json: bool, text: str) -> None:
    """Print ``text``, or the result itself as JSON."""
    if as_json:
        show_json(dataclasses.asdict(result) if dataclasses.is_dataclass(result) and not isinstance(result, type) else result)
    else:
        typer.echo(text)


def show_json(value: Any) -> None:
    """Print one line of JSON; a number that is not finite, which JSON cannot write, becomes null."""
    typer.echo(json.dumps(_finite(value), default=str, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under titles, and an empty line; as wide as the terminal, or as ``WIDTH`` into a file or a pipe."""
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    table = Table(*titles, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
    typer.echo()
