"""The commands ``sparkring checkpoints list | show | verify``: the checkpoints that a run can resume from."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated

import typer

from sparkring.cli.stored.run_address import Run, run_url
from sparkring.cli.terminal.answers import AsJson, Overrides, examples, print_table, show_json

commands = typer.Typer()
checkpoints = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
commands.add_typer(checkpoints, name="checkpoints")

Steps = Annotated[int | None, typer.Option(help="The checkpoint after this many optimizer steps.")]


@checkpoints.callback()
def _checkpoints() -> None:
    """List the checkpoints of a run, show what they hold, and verify their bytes."""


@checkpoints.command("list", epilog=examples("sparkring checkpoints list local/flights"))
def list_(run: Run, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """List the committed checkpoints, oldest first."""
    from sparkring.spark_jobs.stored.checkpoints import list_checkpoints

    found = list_checkpoints(run_url(run, overrides))
    if as_json:
        show_json([dataclasses.asdict(each) for each in found])
        return
    print_table(["steps", "next", "held-out loss", "kept as", "MB", "parts", "made by"], [
        [f"{each.steps:,}", f"epoch {each.epoch}, step {each.step}", f"{each.validation['loss']:.4f}" if each.validation else "",
         each.kept_as, f"{each.bytes / 1e6:,.1f}", str(each.parts), each.damaged or each.layout] for each in found])


@checkpoints.command("show", epilog=examples("sparkring checkpoints show local/flights", "sparkring checkpoints show my.yaml --steps 400"))
def show_(run: Run, overrides: Overrides = None, steps: Steps = None) -> None:
    """Print a checkpoint's document as JSON; default the latest."""
    from sparkring.spark_jobs.stored.checkpoints import show_checkpoint

    show_json(show_checkpoint(run_url(run, overrides), steps))


@checkpoints.command("verify", epilog=examples("sparkring checkpoints verify local/flights"))
def verify(run: Run, overrides: Overrides = None, steps: Steps = None, as_json: AsJson = False) -> None:
    """Read every byte and compare the hashes; exit code 1 if a checkpoint is damaged."""
    from sparkring.spark_jobs.stored.checkpoints import verify_checkpoints

    found = verify_checkpoints(run_url(run, overrides), steps)
    if as_json:
        show_json([dataclasses.asdict(each) for each in found])
    else:
        print_table(["steps", "tensors", "parameters", "verdict"], [
            [f"{each.steps:,}", f"{each.tensors:,}", f"{each.parameters:,}", each.problem or "whole"] for each in found])
    if any(each.problem for each in found):
        sys.exit(1)
