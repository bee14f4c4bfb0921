"""The argument of commands on one run: a config, whose run it is, or the run's own folder or URL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sparkring.cli.terminal.console import console_progress
from sparkring.conf.loading import load_config, shipped_configs

Run = Annotated[str, typer.Argument(
    metavar="RUN", help="A config, whose run is taken, or a run's folder or URL, e.g. runs/flights/runs/v1-3e70edc1.")]


def run_url(run: str, overrides: Sequence[str] | None) -> str:
    """The address of a run: that of a config, else what was given. What can only be a config has to be there.

    Raises:
        ConfigError: the config cannot be read, or its workspace has no such run.
    """
    is_config = bool(overrides) or (run.endswith((".yaml", ".yml")) and not Path(run).is_dir())
    if not is_config and run not in shipped_configs() and not Path(run).is_file():
        return run
    from sparkring.spark_jobs.run.place import with_existing_run

    return with_existing_run(load_config(run, overrides or []), progress=console_progress()).run_url
