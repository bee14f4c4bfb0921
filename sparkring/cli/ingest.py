"""The command ``sparkring ingest``."""

from __future__ import annotations

import typer

from sparkring.cli.terminal.answers import DEFAULT_CONFIG, AsJson, ConfigName, Overrides, examples, show
from sparkring.cli.terminal.console import console_progress
from sparkring.conf.loading import load_config

commands = typer.Typer()


@commands.command(epilog=examples("sparkring ingest my.yaml", "sparkring ingest my.yaml --set ingest.every=1h"))
def ingest(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Append the new rows of a growing source to the dataset, each once, as Spark's Structured Streaming finds them.

    Without ingest.every the command takes what is there and ends. The next call resumes one that was cut off, or that Ctrl-C or SIGTERM
    stopped.
    """
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.ingest import ingest as run_ingest
    from sparkring.spark_jobs.recovery.stop import stop_on_signals

    with stop_on_signals() as stop:
        result = run_ingest(loaded, progress=console_progress(), stop=stop)
    new = f"dataset versions {', '.join(map(str, result.versions))}" if result.versions else "nothing new"
    show(result, as_json=as_json, text=f"{new}; {result.rows:,} rows in all")
