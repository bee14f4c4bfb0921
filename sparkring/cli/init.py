"""The command ``sparkring init``: a commented config for a table of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkring.cli.terminal.answers import AsJson, examples, print_table, show_json
from sparkring.cli.terminal.console import console_progress

if TYPE_CHECKING:
    from sparkring.spark_jobs.inference.init import InitResult

commands = typer.Typer()

Table = Annotated[str, typer.Argument(metavar="TABLE", help="A CSV, Parquet, JSON or ORC file or folder, or a table that Spark knows.")]
Label = Annotated[str, typer.Option("--label", help="The column to predict.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="The YAML file to write; default TABLE.yaml, here.")]
Explain = Annotated[bool, typer.Option("--explain", help="Also print what was chosen for every column, and why.")]


@commands.command(epilog=examples("sparkring init orders.csv --label returned", "sparkring init shop.orders --label returned --explain"))
def init(table: Table, label: Label, output: Output = None, explain: Explain = False, as_json: AsJson = False) -> None:
    """Write a commented config for a table: kinds of columns, task and split are found by looking at its rows.

    Columns that would tell the label are left out and named. Read the file, change what you know better, then run sparkring prepare.
    """
    from sparkring.spark_jobs.inference.init import init as run_init

    result = run_init(table, label=label, output=output, progress=console_progress())
    if as_json:
        show_json({"path": result.path, "rows": result.rows, "task": result.choices.task,
                   "columns": [{key: getattr(each, key) for key in ("column", "use", "why", "leaks")} for each in result.choices.columns]})
        return
    if explain:
        print_table(["column", "use", "why"], [
            [result.choices.label, f"label, {result.choices.task}", result.choices.label_why],
            *([each.column, each.use, each.why] for each in result.choices.columns)])
    typer.echo("\n".join(_summary(result)))


def _summary(result: InitResult) -> list[str]:
    choices = result.choices
    left_out = choices.of("left out")
    used = len(choices.columns) - len(left_out)
    lines = [f"{result.path}: {result.rows:,} rows, task {choices.task}, {used} features, {len(left_out)} columns left out"]
    lines += [f"  {each.column} would tell the label: {each.why}" for each in left_out if each.leaks]
    return [*lines, f"next: read {result.path}, then  sparkring prepare {result.path}"]
