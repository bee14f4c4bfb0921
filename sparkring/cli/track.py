"""The command ``sparkring track``: send a run to MLflow."""

from __future__ import annotations

import typer

from sparkring.cli.answers import DEFAULT_CONFIG, AsJson, ConfigName, Overrides, examples, show
from sparkring.cli.console import console_progress
from sparkring.conf.loading import load_config

commands = typer.Typer()


@commands.command(epilog=examples("sparkring track my.yaml",
                                  "sparkring track my.yaml --set tracking.mlflow_uri=http://mlflow.example.org:5000"))
def track(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Send to MLflow what it does not have yet of a run: metrics, model, evaluation and report. Needs no Spark.

    With a section tracking in the config, train, evaluate and report send by themselves; this command sends what was left.
    """
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.track import track as run_track

    result = run_track(loaded, progress=console_progress())
    what = ", ".join([*([f"{result.metrics:,} metrics"] if result.metrics else []), *result.files]) or "nothing: MLflow has all of it"
    show(result, as_json=as_json, text=f"sent {what} (MLflow run {result.mlflow_run_id})")
