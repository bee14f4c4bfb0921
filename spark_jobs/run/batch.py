"""The global batch of a run: fitted to the train rows if the config names none, with a warning if it leaves few steps."""

from __future__ import annotations

from sparkring.conf.schema import Config
from sparkring.conf.schema.train import SMALLEST_DEFAULT_BATCH, default_batch_rows
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.spark_jobs.spark.progress import Progress

FEW_STEPS = 10
"""With fewer optimizer steps an epoch, a batch that the config names is worth a warning."""


def with_batch(config: Config, manifest: Manifest, progress: Progress) -> Config:
    """The config with ``train.batch_rows`` filled in; notes a chosen size, and a given one that leaves an epoch few steps."""
    rows = manifest.splits["train"].rows
    fitted = config.fitted_to(rows)
    batch_rows = fitted.train.step_rows
    steps = -(-rows // batch_rows)
    if config.train.batch_rows is None:
        progress.note(f"training: batches of {batch_rows} rows, {steps} steps an epoch (train.batch_rows sets another size)")
    elif steps < FEW_STEPS and batch_rows > SMALLEST_DEFAULT_BATCH:
        progress.note(f"training: warning: train.batch_rows={batch_rows} makes only {steps} step{'s' if steps > 1 else ''} an epoch of "
                      f"{rows} train rows, {steps * config.train.epochs} in all; leave train.batch_rows out to have a size that fits "
                      f"({default_batch_rows(rows)}), or raise train.epochs")
    return fitted
