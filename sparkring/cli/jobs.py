"""The commands of the main job's steps: ``prepare``, ``train``, ``evaluate``, ``score`` and ``report``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from sparkring.cli.answers import DEFAULT_CONFIG, AsJson, ConfigName, Overrides, examples, show
from sparkring.cli.console import console_progress
from sparkring.conf.loading import load_config

Append = Annotated[bool, typer.Option("--append", help="Add the source's new rows to the latest version, whose files are kept.")]
Inputs = Annotated[list[str] | None, typer.Option(
    "--input", metavar="[SOURCE=]PATH",
    help="New rows to score: a file, folder or table in place of the config's source. Repeat it with SOURCE= to replace several.")]
StepFile = Annotated[Path | None, typer.Option(
    "--step", metavar="FILE",
    help="Also draw one step of a model in stages into this SVG file: the planned schedule above the measured one.")]

commands = typer.Typer()


@commands.command(epilog=examples("sparkring prepare", "sparkring prepare my.yaml --set prepare.row_group_mb=4"))
def prepare(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, append: Append = False,
            as_json: AsJson = False) -> None:
    """Commit a dataset version: read and join the source, split, check expectations, fit on train, encode, shuffle, shard.

    The same source and config reuse the version that exists. With --append the new version keeps the files of the latest one and adds the
    source's new rows, encoded with the same statistics.
    """
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.prepare import prepare as run_prepare

    result = run_prepare(loaded, append=append, progress=console_progress())
    how = "reused" if result.reused else "prepared"
    rows = ", ".join(f"{name} {count:,}" for name, count in result.rows.items())
    show(result, as_json=as_json, text=f"dataset version {result.version} ({how}) at {result.url}\nrows: {rows}")


@commands.command(epilog=examples("sparkring train", "sparkring train --set train.num_ranks=4 --set 'spark.master=local[4]'",
                              "sparkring train my.yaml --set workspace=runs/second --set dataset_url=runs/first/dataset"))
def train(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Train on a dataset version with a ring of Horovod ranks inside a Spark barrier stage.

    If a rank or a host fails, training restarts from the last checkpoint (train.recovery). Whatever ended a run, the same command resumes
    it. Ctrl-C and SIGTERM save a checkpoint within seconds and end with code 130 and 143.
    """
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.recovery.stop import stop_on_signals
    from sparkring.spark_jobs.train import train as run_train

    with stop_on_signals() as stop:
        result = run_train(loaded, progress=console_progress(), stop=stop)
    how = "done already, reused" if result.reused else "trained"
    lost = f"\n{result.failed_checkpoints} checkpoints could not be written" if result.failed_checkpoints else ""
    show(result, as_json=as_json, text=f"{result.steps:,} steps, {result.epochs} epochs ({how}) at {result.url}\n"
                                        f"validation: {_figures(result.validation)}{lost}")


@commands.command(epilog=examples("sparkring evaluate", "sparkring evaluate --json | jq .network.auc"))
def evaluate(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Evaluate the trained network on held-out rows, beside the base rate and a logistic regression."""
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.evaluate import evaluate as run_evaluate

    result = run_evaluate(loaded, progress=console_progress())
    show(result, as_json=as_json, text=quality_text(result))


@commands.command(epilog=examples("sparkring score", "sparkring score --set score.split=validation",
                              "sparkring score orders.yaml --input new_orders.csv"))
def score(config: ConfigName = DEFAULT_CONFIG, inputs: Inputs = None, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Predict rows on Spark with the trained model, and write Parquet: of a split, or with --input new rows without labels.

    With --input the config's query runs on the new rows. A job that was cut off resumes with the files that are left.
    """
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.score import score as run_score

    result = run_score(loaded, input=_given(inputs, sources=loaded.prepare.sources), progress=console_progress())
    how = "reused" if result.reused else "scored"
    show(result, as_json=as_json, text=f"{result.rows:,} rows ({how}) at {result.url}")


@commands.command(epilog=examples("sparkring report", "sparkring report my.yaml --step step.svg"))
def report(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, step_file: StepFile = None, as_json: AsJson = False) -> None:
    """Write one self-contained HTML page about the contents of the workspace. Needs no Spark."""
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.report import report as run_report

    result = run_report(loaded, step_file=step_file, progress=console_progress())
    show(result, as_json=as_json, text=f"report at {result.path}")


def quality_text(evaluation: dict[str, Any]) -> str:
    """One line for each model, its best-known figures first."""
    head = f"on the {evaluation['split']} split of dataset version {evaluation['dataset_version']}:"
    if evaluation["task"] != "binary":
        shown = [(name, name.replace("_", " ")) for name in ("accuracy", "loss", "bits_per_byte") if name in evaluation["network"]]
        rows = [f"  {key.replace('_', ' '):<20} {'   '.join(f'{words} {evaluation[key][name]:.4f}' for name, words in shown)}"
                for key in ("network", "base_rate")]
        return "\n".join([head, *rows])
    rows = [f"  {title:<20} AUC {model['auc']:.4f}   average precision {model['average_precision']:.4f}   loss {model['loss']:.4f}"
            for key, title in (("network", "network"), ("logistic_regression", "logistic regression"), ("base_rate", "base rate"))
            if key in evaluation for model in [evaluation[key]]]
    return "\n".join([head, *rows])


def _given(inputs: list[str] | None, *, sources: Iterable[str]) -> str | dict[str, str] | None:
    """What ``--input`` gives: a path or table, or several by the names of the sources that they replace."""
    pairs = [text.partition("=") for text in inputs or []]
    if inputs and len(inputs) == 1 and pairs[0][0] not in sources:
        return inputs[0]
    return {name: path for name, _, path in pairs} or None


def _figures(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
