"""The command ``sparkring audit``: the proof, from a run's events, that each epoch read each row once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparkring.cli.stored.run_address import Run, run_url
from sparkring.cli.terminal.answers import AsJson, Overrides, examples, show
from sparkring.cli.terminal.console import console_progress

if TYPE_CHECKING:
    from sparkring.spark_jobs.stored.audit import AuditResult

commands = typer.Typer()


@commands.command(epilog=examples("sparkring audit local/flights", "sparkring audit my.yaml --set run=wide",
                                  "sparkring audit s3://bucket/flights/runs/wide --dataset /mnt/copies/flights"))
def audit(run: Run, overrides: Overrides = None,
          dataset: Annotated[str | None, typer.Option(help="The dataset's address now; default: the address that the run read.")] = None,
          as_json: AsJson = False) -> None:
    """Prove offline that each epoch of a run read each row exactly once, over all restarts and numbers of ranks.

    Reads only the events of the run and the manifest of the dataset version, and names a record that was changed.
    """
    from sparkring.spark_jobs.stored.audit import audit as run_audit

    result = run_audit(run_url(run, overrides), dataset_url=dataset, progress=console_progress())
    show(result, as_json=as_json, text=_text(result))


def _text(result: AuditResult) -> str:
    """The facts that were proved, and the rings that they cover."""
    begun = f"; of epoch {result.epochs + 1} {result.rows_begun:,} rows so far, none twice" if result.rows_begun else ""
    state = "finished" if result.finished else "not finished, proved up to its latest checkpoint"
    checked = ("each page was checked against its checksum as it was read" if result.page_checksums
               else "the files were adopted, and pages were checked only if they carry a checksum")
    rings = [f"  generation {part.generation}, {part.num_ranks} ranks: epoch {part.begins[0] + 1} step {part.begins[1]} "
             f"to epoch {part.ends[0] + 1} step {part.ends[1]}" for part in result.parts]
    gradients = [] if result.strategy == "exact" else [
        f"  strategy {result.strategy}: each row counts once, but the gradients are not those of training on one rank"]
    if result.wire != "exact":
        gradients.append(f"  wire {result.wire}: each row counts once, but what hosts sent each other was rounded; gradients over several "
                         "hosts are not those of training on one rank")
    return "\n".join([
        f"proved: {result.epochs} epochs read the id of each of {result.rows:,} rows exactly once{begun}",
        f"  dataset  {result.dataset_url} version {result.dataset_version}, content {result.content_id[:16]}, rows {result.rows_digest}",
        f"  run      {state}; {result.records:,} records unbroken, {result.repeated:,} of steps that were done again",
        f"  values   not in the receipts; {checked}; `sparkring datasets verify {result.dataset_url}` checks every byte",
        f"  receipts {result.receipts}",
        *gradients,
        *rings])
