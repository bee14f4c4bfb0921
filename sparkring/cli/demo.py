"""The command ``sparkring demo``: the whole main job, and the addresses of its results."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import typer

from sparkring.cli.jobs import quality_text
from sparkring.cli.terminal.answers import DEFAULT_CONFIG, AsJson, ConfigName, Overrides, examples, show
from sparkring.cli.terminal.console import console_progress
from sparkring.conf.loading import load_config
from sparkring.conf.schema import Config

if TYPE_CHECKING:
    from sparkring.spark_jobs.demo import DemoResult

commands = typer.Typer()


@commands.command(epilog=examples("sparkring demo", "sparkring demo local/flights --set train.epochs=2"))
def demo(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Run the main job: prepare, train, evaluate, score, report. What exists already is reused.

    Ctrl-C and SIGTERM during training save a checkpoint within seconds; the same command resumes.
    """
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.demo import demo as run_demo
    from sparkring.spark_jobs.recovery.stop import stop_on_signals

    result = run_demo(loaded, progress=console_progress(), stopping=stop_on_signals)
    arguments = shlex.join([config, *(part for each in overrides or [] for part in ("--set", each))])
    show(result, as_json=as_json, text=_text(result, loaded, arguments))


def _text(result: DemoResult, config: Config, arguments: str) -> str:
    """The addresses of all results, and a command to try next."""
    times = ", ".join(f"{step} {seconds:.1f}" for step, seconds in result.seconds.items())
    return "\n".join([
        quality_text(result.evaluation),
        f"done in {sum(result.seconds.values()):.0f} s (in seconds: {times})",
        f"  dataset  {result.dataset.url} version {result.dataset.version}{_reused(flag=result.dataset.reused)}",
        f"  model    {result.training.url}{_reused(flag=result.training.reused)}",
        f"  scores   {result.scores.url}{_reused(flag=result.scores.reused)}",
        f"  report   {result.report.path}",
        *([] if config.model.kind != "tabular" else [
            "next, a wider network on the same data:",
            f"  sparkring demo {arguments} --set run=wide --set 'model.hidden=[512,256]'"]),
    ])


def _reused(*, flag: bool) -> str:
    return " (reused)" if flag else ""
