"""The commands that look after datasets and runs and need no config: ``audit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparkring.answers import AsJson, examples, show
from sparkring.spark_jobs.console import console_progress

if TYPE_CHECKING:
    from sparkring.spark_jobs.audit import AuditResult

commands = typer.Typer()


@commands.command(epilog=examples("sparkring audit runs/flights/run", "sparkring audit runs/flights/run --dataset /mnt/copies/flights"))
def audit(run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a training run, e.g. <workspace>/run.")],
          dataset: Annotated[str | None, typer.Option(help="Where its dataset is now; default where the run read it.")] = None,
          as_json: AsJson = False) -> None:
    """Prove offline that each epoch of a run read each row exactly once, whatever restarts and numbers of ranks it had.

    Takes the events of the run and the manifest of the dataset version alone; a record that was changed is named.
    """
    from sparkring.spark_jobs.audit import audit as run_audit

    result = run_audit(run, dataset_url=dataset, progress=console_progress())
    show(result, as_json=as_json, text=_audit_text(result))


def _audit_text(result: AuditResult) -> str:
    """What was proved, and over which rings."""
    begun = f"; of epoch {result.epochs + 1} {result.rows_begun:,} rows so far, none twice" if result.rows_begun else ""
    state = "finished" if result.finished else "not finished, proved up to its latest checkpoint"
    rings = [f"  generation {part.generation}, {part.num_ranks} ranks: epoch {part.begins[0] + 1} step {part.begins[1]} "
             f"to epoch {part.ends[0] + 1} step {part.ends[1]}" for part in result.parts]
    return "\n".join([
        f"proved: {result.epochs} epochs read each of {result.rows:,} rows exactly once{begun}",
        f"  dataset  {result.dataset_url} version {result.dataset_version}, content {result.content_id[:16]}, rows {result.rows_digest}",
        f"  run      {state}; {result.records:,} records unbroken, {result.repeated:,} of steps that were done again",
        f"  receipts {result.receipts}",
        *rings])
