"""The command line: ``sparkring COMMAND [CONFIG] [--set key=value ...]``, one verb an operation and no flag a field.

Results go to stdout, progress to stderr. Exit codes: 0 done; 1 ``doctor`` found something that stops a job; 2 the input
or the cluster is at fault, told in one line; 130 interrupted; 143 ended by SIGTERM after saving, so the same command goes on. A bug
keeps its traceback. The operations are imported after the config was checked, so that help and a mistake in it take no time.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sparkring.cli.answers import AsJson, ConfigName, Overrides, examples, show, show_json
from sparkring.cli.chaos import commands as chaos_commands
from sparkring.cli.checkpoints import commands as checkpoint_commands
from sparkring.cli.console import console_progress
from sparkring.cli.data import commands
from sparkring.cli.plan import commands as plan_commands
from sparkring.cli.py4j_logging import silence_py4j
from sparkring.cli.schedule import commands as schedule_commands
from sparkring.cli.submit import commands as submit_commands
from sparkring.cli.text import commands as text_commands
from sparkring.conf.loading import load_config
from sparkring.conf.schema import Config
from sparkring.errors import SparkringError, Stopped
from sparkring.version import __version__

if TYPE_CHECKING:
    from sparkring.spark_jobs.demo import DemoResult
    from sparkring.spark_jobs.doctor import Check

DEFAULT_CONFIG = "local/flights"
FAULT = 2
TERMINATED = 143

Append = Annotated[bool, typer.Option("--append", help="Add to the latest version the rows that it does not hold yet, and keep its files.")]
StepFile = Annotated[Path | None, typer.Option(
    "--step", metavar="FILE", help="Also write the picture of a step in stages to this SVG file: the schedule's plan above what happened.")]

Networks = Annotated[list[Path] | None, typer.Option(
    "--networks", metavar="FILE.py",
    help="A file that registers networks of your own (@sparkring.network). Stands before the command; may be repeated.")]

app = typer.Typer(
    name="sparkring", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with [bold]sparkring doctor[/], then [bold]sparkring demo[/]. Each command says more: [bold]sparkring train --help[/].")


app.add_typer(commands)
app.add_typer(plan_commands)
app.add_typer(schedule_commands)
app.add_typer(checkpoint_commands)
app.add_typer(chaos_commands)
app.add_typer(submit_commands)
app.add_typer(text_commands)


def main() -> None:
    """Run the command line; what is the input's or the cluster's fault ends in one line and exit code 2."""
    silence_py4j()
    try:
        app()
    except Stopped as stopped:
        print(stopped, file=sys.stderr)  # noqa: T201 - as below
        sys.exit(TERMINATED)
    except SparkringError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the traceback of a failed rank follows in the same text
        sys.exit(FAULT)


@app.callback(invoke_without_command=True)
def sparkring(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
              networks: Networks = None) -> None:
    """Train PyTorch models with Horovod where Spark keeps the data.

    CONFIG is a shipped name or your own YAML file; any value in it can be changed with --set.
    """
    if version:
        typer.echo(f"sparkring {__version__}")
        raise typer.Exit
    for file in networks or ():
        from sparkring.cli.network_files import register_file

        register_file(file)


@app.command(epilog=examples("sparkring demo", "sparkring demo local/flights --set workspace=runs/short --set train.epochs=2"))
def demo(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Run the main job: prepare, train, evaluate, score, report. What is there already is reused.

    SIGTERM during the training saves within seconds and ends with code 143; the same command goes on.
    """
    loaded = _load(config, overrides)
    from sparkring.spark_jobs.demo import demo as run_demo
    from sparkring.spark_jobs.recovery.stop import stop_on_sigterm

    result = run_demo(loaded, progress=console_progress(), stopping=stop_on_sigterm)
    show(result, as_json=as_json, text=_demo_text(result, loaded, config))


@app.command(epilog=examples("sparkring prepare", "sparkring prepare my.yaml --set prepare.row_group_mb=4"))
def prepare(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, append: Append = False,
            as_json: AsJson = False) -> None:
    """Commit a dataset version: read and join the source, split, hold against expectations, fit on train, encode, shuffle, shard.

    Equal source and config give the version that is there already. With --append the new version is the latest one and, beside its
    files, the rows of the source that it does not hold yet, encoded with its statistics.
    """
    loaded = _load(config, overrides)
    from sparkring.spark_jobs.prepare import prepare as run_prepare

    result = run_prepare(loaded, append=append, progress=console_progress())
    how = "reused" if result.reused else f"prepared in {result.seconds:.1f} s"
    rows = ", ".join(f"{name} {count:,}" for name, count in result.rows.items())
    show(result, as_json=as_json, text=f"dataset version {result.version} ({how}) at {result.url}\nrows: {rows}")


@app.command(epilog=examples("sparkring train", "sparkring train --set train.num_ranks=4 --set 'spark.master=local[4]'",
                              "sparkring train my.yaml --set dataset_version=3 --set workspace=runs/third"))
def train(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Train on a dataset version with a ring of Horovod ranks inside a Spark barrier stage.

    Ranks and machines that fail are made good from the last checkpoint (train.recovery). The same command again goes on from there too,
    whatever ended the run before. SIGTERM saves within seconds and ends with code 143.
    """
    loaded = _load(config, overrides)
    from sparkring.spark_jobs.recovery.stop import stop_on_sigterm
    from sparkring.spark_jobs.train import train as run_train

    with stop_on_sigterm() as stop:
        result = run_train(loaded, progress=console_progress(), stop=stop)
    how = "done already, reused" if result.reused else f"trained in {result.seconds:.1f} s"
    lost = f"\n{result.failed_checkpoints} checkpoints could not be written on the way" if result.failed_checkpoints else ""
    show(result, as_json=as_json, text=f"{result.steps:,} steps, {result.epochs} epochs ({how}) at {result.url}\n"
                                        f"validation: {_figures(result.validation)}{lost}")


@app.command(epilog=examples("sparkring evaluate", "sparkring evaluate --json | jq .network.auc"))
def evaluate(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Judge the trained network on held-out rows, beside the base rate and a logistic regression."""
    loaded = _load(config, overrides)
    from sparkring.spark_jobs.evaluate import evaluate as run_evaluate

    result = run_evaluate(loaded, progress=console_progress())
    show(result, as_json=as_json, text=_quality_text(result))


@app.command(epilog=examples("sparkring score", "sparkring score --set score.split=validation"))
def score(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Predict the rows of a split on Spark with the trained model, and write Parquet."""
    loaded = _load(config, overrides)
    from sparkring.spark_jobs.score import score as run_score

    result = run_score(loaded, progress=console_progress())
    how = "reused" if result.reused else f"scored in {result.seconds:.1f} s"
    show(result, as_json=as_json, text=f"{result.rows:,} rows ({how}) at {result.url}")


@app.command(epilog=examples("sparkring report", "sparkring report my.yaml --step step.svg"))
def report(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, step_file: StepFile = None, as_json: AsJson = False) -> None:
    """Write one self-contained HTML page about what the workspace holds. Needs no Spark."""
    loaded = _load(config, overrides)
    from sparkring.spark_jobs.report import report as run_report

    result = run_report(loaded, step_file=step_file, progress=console_progress())
    show(result, as_json=as_json, text=f"report at {result.path}")


@app.command(epilog=examples("sparkring doctor", "sparkring doctor yarn/flights"))
def doctor(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Look at what a job of this config needs (Java, Python on executors, slots, Horovod, memory, disk, ports, GPUs).

    Says what to do about each thing that is amiss; exits with 1 if one of them would stop a job.
    """
    loaded = _load(config, overrides)
    from sparkring.spark_jobs.doctor import doctor as run_doctor

    checks = run_doctor(loaded, progress=console_progress())
    if as_json:
        show_json([dataclasses.asdict(check) for check in checks])
    else:
        _show_checks(checks)
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


def _load(config: str, overrides: list[str] | None) -> Config:
    return load_config(config, overrides or [])


def _figures(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def _quality_text(evaluation: dict[str, Any]) -> str:
    """One line a model, best known figures first."""
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


def _demo_text(result: DemoResult, config: Config, name: str) -> str:
    """Where everything lies, and what to try next."""
    times = ", ".join(f"{step} {seconds:.1f}" for step, seconds in result.seconds.items())
    return "\n".join([
        _quality_text(result.evaluation),
        f"done in {sum(result.seconds.values()):.0f} s (in seconds: {times})",
        f"  dataset  {result.dataset.url} version {result.dataset.version}{_reused(flag=result.dataset.reused)}",
        f"  model    {result.training.url}{_reused(flag=result.training.reused)}",
        f"  scores   {result.scores.url}{_reused(flag=result.scores.reused)}",
        f"  report   {result.report.path}",
        *([] if config.model.kind != "tabular" else [
            "next, a wider network on the same data:",
            f"  sparkring demo {name} {_wider(config)}"]),
    ])


def _wider(config: Config) -> str:
    """Options for a second run beside the first, on the same dataset."""
    return f"--set workspace={config.workspace}-wide --set dataset_url={config.dataset} --set 'model.hidden=[512,256]'"


def _reused(*, flag: bool) -> str:
    return " (reused)" if flag else ""


def _show_checks(checks: list[Check]) -> None:
    console = Console()
    if not console.is_interactive:
        for check in checks:
            typer.echo(f"{check.status:<5} {check.name}: {check.found}" + (f" -> {check.advice}" if check.advice else ""))
        return
    colour = {"ok": "green", "warn": "yellow", "fail": "red"}
    table = Table("", "check", "found", "what to do", box=None)
    for check in checks:
        table.add_row(f"[{colour[check.status]}]{check.status}", check.name, check.found, check.advice)
    console.print(table)


if __name__ == "__main__":
    main()
