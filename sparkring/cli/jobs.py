"""The commands of the main job's steps: ``prepare``, ``train``, ``evaluate``, ``score``, ``report``, ``export`` and ``track``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from sparkring.cli.terminal.answers import DEFAULT_CONFIG, AsJson, ConfigName, Overrides, examples, show
from sparkring.cli.terminal.console import console_progress
from sparkring.conf.loading import load_config
from sparkring.errors import ConfigError

Append = Annotated[bool, typer.Option("--append", help="Add the source's new rows to the latest version, whose files are kept.")]
Inputs = Annotated[list[str] | None, typer.Option(
    "--input", metavar="[SOURCE=]PATH",
    help="New rows to score: a file, folder or table in place of the config's source. Repeat it with SOURCE= to replace several.")]
StepFile = Annotated[Path | None, typer.Option(
    "--step", metavar="FILE",
    help="Also draw one step of a model in stages into this SVG file: the planned schedule above the measured one.")]
OfRetrainings = Annotated[bool, typer.Option(
    "--retraining", help="The page of all retrainings instead of a run's: champion against candidate, drift, who was champion when.")]
Opset = Annotated[int | None, typer.Option("--opset", help="Version of ONNX's operations; 18 by default, the oldest that can be written.")]
Output = Annotated[str | None, typer.Option("--output", "-o", metavar="PATH", help="Default: export/model.onnx in the run's folder.")]
Format = Annotated[str, typer.Option("--to", help="The format; onnx is the only one.")]

SHOWN = 3
"""Groups and features that `evaluate` names in its text; the JSON and the report have all."""

commands = typer.Typer()


@commands.command(epilog=examples("sparkring prepare", "sparkring prepare my.yaml --set prepare.row_group_mb=4",
                                  "sparkring prepare my.yaml --append"))
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
                              "sparkring train my.yaml --set run=wide --set 'model.hidden=[512,256]'"))
def train(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Train on a dataset version with a ring of Horovod ranks inside a Spark barrier stage.

    If a rank or a host fails, training restarts from the last checkpoint (train.recovery). Whatever ended a run, the same command resumes
    it. Ctrl-C and SIGTERM save a checkpoint within seconds and end with code 130 and 143. A new dataset version, or another model or
    training, is a new run beside the earlier ones: see sparkring runs list.
    """
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.recovery.stop import stop_on_signals
    from sparkring.spark_jobs.train import train as run_train

    with stop_on_signals() as stop:
        result = run_train(loaded, progress=console_progress(), stop=stop)
    how = "done already, reused" if result.reused else "trained"
    early = f"\n{result.ended_early}" if result.ended_early and result.reused else ""  # else progress has said it
    lost = f"\n{result.failed_checkpoints} checkpoints could not be written" if result.failed_checkpoints else ""
    show(result, as_json=as_json, text=f"{result.steps:,} steps, {result.epochs} epochs ({how}) at {result.url}\n"
                                        f"validation: {_figures(result.validation)}{early}{lost}")


@commands.command(epilog=examples("sparkring evaluate", "sparkring evaluate --json | jq .network.auc"))
def evaluate(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Evaluate the trained network on held-out rows, beside baselines on the same rows."""
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.evaluate import evaluate as run_evaluate

    result = run_evaluate(loaded, progress=console_progress())
    show(result, as_json=as_json, text="\n".join([quality_text(result), *explained_lines(result)]))


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


@commands.command(epilog=examples("sparkring report", "sparkring report my.yaml --step step.svg",
                              "sparkring report my.yaml --retraining"))
def report(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, *, step_file: StepFile = None,
           retraining: OfRetrainings = False, as_json: AsJson = False) -> None:
    """Write one self-contained HTML page about a run and its dataset, or about all retrainings of the workspace. Needs no Spark."""
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.report import report as run_report

    result = run_report(loaded, step_file=step_file, retraining=retraining, progress=console_progress())
    show(result, as_json=as_json, text=f"report at {result.path}")


@commands.command(epilog=examples("sparkring export", "sparkring export my.yaml --to onnx --opset 21 --output my.onnx"))
def export(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, to: Format = "onnx", opset: Opset = None,
           output: Output = None, as_json: AsJson = False) -> None:
    """Write the trained model as one ONNX file, compare its answers with torch's on held-out rows, and write its model card."""
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.export import export as run_export

    settings: dict[str, Any] = {"to": to, "output": output, **({"opset": opset} if opset is not None else {})}
    result = run_export(loaded, **settings, progress=console_progress())
    show(result, as_json=as_json, text=f"ONNX model (opset {result.opset}) at {result.path}, described in {result.card}\n"
         f"inside: {', '.join(result.inside) or 'no preprocessing'}\nbeside, for you to do: {', '.join(result.beside)}\n"
         f"checked on {result.rows:,} {result.split} rows: {result.output} differs from torch by at most {result.difference:.1e} "
         f"(allowed: {result.tolerance:.0e})")


@commands.command(epilog=examples("sparkring track my.yaml",
                                  "sparkring track my.yaml --set tracking.mlflow_uri=http://mlflow.example.org:5000"))
def track(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Send to MLflow what it does not have yet of a run: metrics, model, evaluation and report. Needs no Spark.

    With a section tracking in the config, train, evaluate and report send by themselves; this command sends what was left.
    """
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.tracking.track import track as run_track

    result = run_track(loaded, progress=console_progress())
    what = ", ".join([*([f"{result.metrics:,} metrics"] if result.metrics else []), *result.files]) or "nothing: MLflow has all of it"
    show(result, as_json=as_json, text=f"sent {what} (MLflow run {result.mlflow_run_id})")


def quality_text(evaluation: dict[str, Any]) -> str:
    """One line for each model, its best-known figures first."""
    head = f"on the {evaluation['split']} split of dataset version {evaluation['dataset_version']}:"
    if evaluation["task"] == "regression":
        models = {title: evaluation[key] for key, title in (("network", "network"), ("ridge", "ridge regression"), ("mean", "mean"))
                  if key in evaluation}
        rows = [f"  {title:<20} R2 {math.nan if found['r2'] is None else found['r2']:.4f}   RMSE {found['rmse']:.4g}   "
                f"MAE {found['mae']:.4g}" for title, found in models.items()]
        return "\n".join([head, *rows])
    if evaluation["task"] != "binary":
        shown = [(name, name.replace("_", " ")) for name in ("accuracy", "loss", "bits_per_byte") if name in evaluation["network"]]
        rows = [f"  {key.replace('_', ' '):<20} {'   '.join(f'{words} {evaluation[key][name]:.4f}' for name, words in shown)}"
                for key in ("network", "base_rate")]
        return "\n".join([head, *rows])
    rows = [f"  {title:<20} AUC {model['auc']:.4f}   average precision {model['average_precision']:.4f}   loss {model['loss']:.4f}"
            for key, title in (("network", "network"), ("logistic_regression", "logistic regression"), ("base_rate", "base rate"))
            if key in evaluation for model in [evaluation[key]]]
    return "\n".join([head, *rows])


def explained_lines(evaluation: dict[str, Any]) -> Iterator[str]:
    """The worst groups of rows and the most important features, if the evaluation has them."""
    slices, importance = evaluation.get("slices", {}), evaluation.get("importance", {})
    worst, features = slices.get("worst", []), importance.get("features", [])
    if worst:
        named = [f"{group['feature']} {group['value']} ({group['rows']:,} rows, loss {group['loss']:.4g} against {group['rest']:.4g})"
                 for group in worst[:SHOWN]]
        more = f", and {slices['worse'] - len(named)} more groups" if slices["worse"] > len(named) else ""
        yield f"worse than on the rest: {', '.join(named)}{more}"
    if features:
        yield "leans most on: " + ", ".join(f"{each['feature']} {each['rise']:+.4g}" for each in features[:SHOWN]) + " (rise of the loss)"


def _given(inputs: list[str] | None, *, sources: Iterable[str]) -> str | dict[str, str] | None:
    """What ``--input`` gives: a path or table, or several by the names of the sources that they replace.

    Raises:
        ConfigError: several are given, and not each by a name of its own.
    """
    if not inputs:
        return None
    named = {name: path for name, _, path in (text.partition("=") for text in inputs) if path}
    if len(inputs) == 1 and named.keys().isdisjoint(sources):  # a path may hold = itself, as a partition's folder does
        return inputs[0]
    if len(named) < len(inputs):
        raise ConfigError(f"--input is given {len(inputs)} times ({', '.join(inputs)}); give each as SOURCE=PATH, each source once.")
    return named


def _figures(metrics: dict[str, float]) -> str:
    own_units = ("rmse", "mae")
    return ", ".join(f"{name} {value:{'.4g' if name in own_units else '.4f'}}" for name, value in metrics.items())
