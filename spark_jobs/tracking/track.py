"""Send a run to MLflow: all of it, or what is not sent yet.

    sparkring track local/flights --set tracking.mlflow_uri=http://mlflow.example.org:5000

``train`` sends a run while it trains, if the config has a section ``tracking``. This command sends what was left because MLflow was away,
and runs that were trained before there was that section. Needs no Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkring.conf.loading import ConfigLike, config_of_job
from sparkring.errors import ConfigError
from sparkring.pipelines.training.events.writer import event_files
from sparkring.spark_jobs.run.place import with_existing_run
from sparkring.spark_jobs.spark.progress import SILENT, Progress
from sparkring.spark_jobs.tracking.following import is_done, require_mlflow, sending
from sparkring.spark_jobs.tracking.sender import Sender


@dataclass(frozen=True)
class TrackResult:
    """What was sent by this call."""

    mlflow_run_id: str
    metrics: int
    """Values of metrics; 0 if all were sent before."""
    files: tuple[str, ...]
    """Of ``model``, ``evaluation.json`` and ``report.html``."""


def track(config: ConfigLike, *, progress: Progress = SILENT, **keys: Any) -> TrackResult:
    """Send what MLflow does not have yet of the run of ``config``.

    Args:
        config: What ``load_config`` takes; names the run (see ``run/place.py``) and, in its section ``tracking``, the server.
        progress: Where to report.
        keys: Keys of the config that replace those of ``config``, e.g. ``workspace="runs/x"``.
    Raises:
        ConfigError: there is no section ``tracking``, or no run.
        EnvironmentProblem: MLflow is not installed.
        TrackingFailed: MLflow does not answer, or refuses; what was sent stays, and the same call sends the rest.
        CommitConflict: another process is sending the run.
    """
    config = config_of_job(track, config, keys)
    if config.tracking is None:
        raise ConfigError("the config has no section tracking; add it, or give --set tracking.mlflow_uri=http://HOST:5000.")
    require_mlflow(config)
    config = with_existing_run(config, progress=progress)
    assert config.tracking is not None
    if not event_files(config.run_url):
        raise ConfigError(f"{config.run_url} holds no run; run `sparkring train` with this config first.")
    with progress.stage("track"), sending(config.run_url, config.tracking):
        sender = Sender(config, config.tracking, run_url=config.run_url)
        metrics, files = sender.send(), sender.send_files()
        if is_done(config.run_url):
            sender.end("FINISHED")
    return TrackResult(sender.mlflow_run_id, metrics, tuple(files))
