"""The commands ``sparkring models list | show | promote | rollback``: the registry of a workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sparkring.cli.terminal.answers import DEFAULT_CONFIG, AsJson, ConfigName, Overrides, examples, print_table, show_json
from sparkring.cli.terminal.console import console_progress
from sparkring.conf.loading import load_config

if TYPE_CHECKING:
    from sparkring.spark_jobs.registry.documents import AliasChange, ModelVersion

commands = typer.Typer()
models = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
commands.add_typer(models, name="models")

Which = Annotated[str | None, typer.Argument(metavar="[VERSION]", help="A number, or candidate; default the model of the config's run.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept with the change.")]


@models.callback()
def _models() -> None:
    """List the registered models of a workspace, and say which of them is the champion.

    A model version names its run, its dataset version, its metrics and the hashes of its files. The champion is the version in use;
    the candidate is one that sparkring retrain compares with it.
    """


@models.command("list", epilog=examples("sparkring models list", "sparkring models list my.yaml --json"))
def list_(config: ConfigName = DEFAULT_CONFIG, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """List the model versions of the config's workspace, oldest first."""
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.stored.models import list_models

    versions, aliases = list_models(loaded)
    if as_json:
        show_json({"versions": [each.model_dump(mode="json") for each in versions], "champion": aliases.champion,
                   "candidate": aliases.candidate})
    elif not versions:
        typer.echo(f"{loaded.workspace} has no registered model yet; sparkring retrain registers one, and so does sparkring models promote")
    else:
        print_table(["version", "alias", "run", "dataset", "held out", "registered"], [
            [str(each.version), _alias(each.version, aliases), each.run, f"version {each.dataset_version}", _figures(each),
             each.created_at] for each in versions])


@models.command("show", epilog=examples("sparkring models show my.yaml champion", "sparkring models show my.yaml 3"))
def show_(config: ConfigName, which: Annotated[str, typer.Argument(metavar="VERSION", help="A number, champion or candidate.")],
          overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Show a model version and what became of it; its files are compared with their registered hashes."""
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.stored.models import show_model

    version, changes = show_model(loaded, which)
    if as_json:
        show_json(version.model_dump(mode="json") | {"history": [each.model_dump(mode="json") for each in changes]})
        return
    typer.echo("\n".join([
        f"model version {version.version} of {version.name} ({version.task})",
        f"  run         {version.run} in {loaded.runs}",
        f"  dataset     {version.dataset_url} version {version.dataset_version}",
        *(f"  {name:<11} {value:.4f}{_interval(version, name)}" for name, value in version.metrics.items()),
        f"  measured    on {version.rows:,} {version.split} rows; [95 % confidence]",
        f"  code        sparkring {version.code_version}",
        *(f"  file        {file.name}, {file.bytes:,} bytes, SHA-256 {file.sha256[:16]}, unchanged" for file in version.files),
        *(f"  {each.at}  {each.act}: {each.reason}" for each in changes)]))


@models.command("promote", epilog=examples("sparkring models promote my.yaml", "sparkring models promote my.yaml 3 --reason 'A/B test'"))
def promote(config: ConfigName, which: Which = None,
            reason: Reason = "promoted by hand", overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Make a model the champion. Without VERSION the model of the config's run, which sparkring evaluate has measured."""
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.stored.models import promote as run_promote

    _say(run_promote(loaded, which, reason=reason, progress=console_progress()), as_json=as_json)


@models.command("rollback", epilog=examples("sparkring models rollback my.yaml --reason 'too many false alarms'"))
def rollback(config: ConfigName, reason: Reason = "rolled back by hand", overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Bring the champion before the present one back; again, the one before that."""
    loaded = load_config(config, overrides or [])
    from sparkring.spark_jobs.stored.models import rollback as run_rollback

    _say(run_rollback(loaded, reason=reason, progress=console_progress()), as_json=as_json)


def _say(change: AliasChange, *, as_json: bool) -> None:
    if as_json:
        show_json(change.model_dump(mode="json"))
    else:
        typer.echo(f"model version {change.champion} is the champion ({change.reason})")


def _alias(version: int, aliases: AliasChange) -> str:
    return "champion" if version == aliases.champion else "candidate" if version == aliases.candidate else ""


def _figures(version: ModelVersion) -> str:
    return ", ".join(f"{name} {value:.4f}{_interval(version, name)}" for name, value in list(version.metrics.items())[:2])


def _interval(version: ModelVersion, name: str) -> str:
    found = version.intervals.get(name)
    return "" if found is None else f" [{found.low:.4f}, {found.high:.4f}]"
