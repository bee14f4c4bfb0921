"""The commands on stored datasets: ``datasets``, of a config or an address, and ``adopt``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkring.cli.terminal.answers import AsJson, Overrides, examples, print_table, show, show_json
from sparkring.cli.terminal.console import console_progress
from sparkring.conf.loading import load_config, shipped_configs
from sparkring.errors import ConfigError

if TYPE_CHECKING:
    from sparkring.spark_jobs.stored.datasets import ShuffleQuality, VersionDetails

GRACE_HOURS = 24.0

commands = typer.Typer()
datasets = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
commands.add_typer(datasets, name="datasets")

DatasetName = Annotated[str, typer.Argument(
    metavar="DATASET", help="A config, whose dataset is taken, or a dataset's folder or URL, e.g. runs/flights/dataset.")]
Version = Annotated[int | None, typer.Option(help="The version; default the latest.")]


def _address(given: str, overrides: Sequence[str] | None) -> str:
    """The dataset of a config; else what was given. What can only be a config has to be there."""
    is_config = bool(overrides) or (given.endswith((".yaml", ".yml")) and not Path(given).is_dir())
    return load_config(given, overrides or []).dataset if is_config or given in shipped_configs() or Path(given).is_file() else given


@datasets.callback()
def _datasets() -> None:
    """List, show, compare and verify the versions of a dataset, and delete files that belong to none."""


@datasets.command("list", epilog=examples("sparkring datasets list my.yaml", "sparkring datasets list runs/flights/dataset"))
def list_(dataset: DatasetName, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """List the committed versions."""
    from sparkring.spark_jobs.stored.datasets import list_versions

    url = _address(dataset, overrides)
    versions = list_versions(url)
    if as_json:
        show_json([dataclasses.asdict(each) for each in versions])
    elif not versions:
        typer.echo(f"{url} has no committed version yet")
    else:
        print_table(["version", "made from", "committed", "task", "rows", "files", "MB", "content"], [
            [str(each.version), str(each.parent or ""), each.created_at, each.task, _counts(each.rows), f"{each.files:,}",
             f"{each.bytes / 1e6:,.1f}", each.content_id[:16]] for each in versions])


@datasets.command("show", epilog=examples("sparkring datasets show my.yaml", "sparkring datasets show /data/x --version 2"))
def show_(dataset: DatasetName, overrides: Overrides = None, version: Version = None, as_json: AsJson = False) -> None:
    """Show a version: its columns, tensors, splits and source, and how well its rows are mixed in training."""
    from sparkring.spark_jobs.stored.datasets import show_version

    details = show_version(_address(dataset, overrides), version)
    if as_json:
        quality = dataclasses.asdict(details.quality) if details.quality else None
        show_json({"url": details.url, "manifest": details.manifest.model_dump(mode="json"), "shuffle_quality": quality})
    else:
        _print_details(details)


@datasets.command("diff", epilog=examples("sparkring datasets diff my.yaml 1 2"))
def diff(dataset: DatasetName, before: Annotated[int, typer.Argument(metavar="A", help="A version.")],
         after: Annotated[int, typer.Argument(metavar="B", help="Another version.")], overrides: Overrides = None,
         as_json: AsJson = False) -> None:
    """Show the differences between versions A and B: columns, rows, fitted statistics and vocabularies, recipe and source."""
    from sparkring.spark_jobs.stored.datasets import diff_versions

    differences = diff_versions(_address(dataset, overrides), before, after)
    if as_json:
        show_json([dataclasses.asdict(each) for each in differences])
    elif not differences:
        typer.echo(f"versions {before} and {after} do not differ")
    else:
        print_table(["", "what", f"version {before}", f"version {after}"],
                     [[each.section, each.what, each.before, each.after] for each in differences])


@datasets.command("verify", epilog=examples("sparkring datasets verify my.yaml --version 2"))
def verify(dataset: DatasetName, overrides: Overrides = None, version: Version = None, as_json: AsJson = False) -> None:
    """Check the SHA-256 of every file of a version, that there are no extra files, and that nobody edited its manifest."""
    from sparkring.spark_jobs.stored.datasets import verify_version

    summary = verify_version(_address(dataset, overrides), version, progress=console_progress())
    show(summary, as_json=as_json, text=f"version {summary.version}: all {summary.files:,} files ({summary.bytes / 1e6:,.1f} MB) are "
                                        "unchanged")


@datasets.command("gc", epilog=examples("sparkring datasets gc my.yaml --delete"))
def gc(dataset: DatasetName, overrides: Overrides = None,
       delete: Annotated[bool, typer.Option("--delete", help="Delete them; without this they are only listed.")] = False,
       grace_hours: Annotated[float, typer.Option(min=0.0, help="Keep folders that changed within this many hours.")] = GRACE_HOURS,
       as_json: AsJson = False) -> None:
    """Find data folders that no version names, as a killed prepare leaves them, and delete them with --delete."""
    from sparkring.spark_jobs.stored.dataset_gc import collect_garbage

    result = collect_garbage(_address(dataset, overrides), delete=delete, grace_hours=grace_hours)
    lines = [f"{'deleted' if result.deleted else 'garbage'}  {folder}  {size / 1e6:,.1f} MB" for folder, size in result.garbage.items()]
    lines += [f"kept, changed recently  {folder}" for folder in result.young]
    hint = ["nothing was deleted; add --delete to do it"] if result.garbage and not result.deleted else []
    show(result, as_json=as_json, text="\n".join([*lines, *hint] or ["every data folder belongs to a version"]))


@commands.command(epilog=examples("sparkring adopt /data/rides --row-id id --label late --split train=train --split validation=val"))
def adopt(url: Annotated[str, typer.Argument(metavar="URL", help="Folder of the Parquet files, or of the splits' folders.")],
          row_id: Annotated[str, typer.Option(help="Column of integers that is different in every row.")],
          label: Annotated[str, typer.Option(help="Column to predict: 0 and 1, class numbers from 0 on, or any numbers.")],
          split: Annotated[list[str] | None, typer.Option(metavar="NAME=FOLDER", help="A split and its folder. May be repeated.")] = None,
          as_json: AsJson = False) -> None:
    """Make an existing Petastorm or plain Parquet dataset version 1 of a dataset, where it lies: writes a manifest, moves nothing.

    Metadata that would run code when unpickled is refused; none of that code is run.
    """
    from sparkring.spark_jobs.stored.adopt import adopt as run_adopt

    result = run_adopt(url, row_id=row_id, label=label, splits=dict(map(_split_folder, split)) if split else None,
                       progress=console_progress())
    left_out = (f"\nleft out: {', '.join(result.left_out)} (arrays whose rows differ in size, images whose schema names none)"
                if result.left_out else "")
    rounded = f"\nrounded to float32 in a batch: {', '.join(result.rounded)}" if result.rounded else ""
    missing = "" if "validation" in result.rows else ("\nnot ready to train: there is no validation split; to add one, delete "
                                                      f"{result.url}/_versions and adopt again with --split train=FOLDER "
                                                      "--split validation=FOLDER")
    show(result, as_json=as_json, text=f"dataset version {result.version} ({'Petastorm' if result.petastorm else 'plain Parquet'}, "
                                       f"{result.task}) at {result.url}\nrows: {_counts(result.rows)}\n"
                                       f"tensors: {', '.join(result.tensors)}{left_out}{rounded}{missing}")


def _split_folder(text: str) -> tuple[str, str]:
    name, equals, folder = text.partition("=")
    if not (name and equals):
        raise ConfigError(f"--split {text} is not of the form NAME=FOLDER; give e.g. --split train=train.")
    return name, folder


def _print_details(details: VersionDetails) -> None:
    from sparkring.pipelines.data.dataset.manifest_diff import describe_field
    from sparkring.spark_jobs.reporting.facts.data import feature_words, label_words

    manifest, fitted = details.manifest, details.manifest.preprocessing
    made = f"version {manifest.version}" + (f", made from version {manifest.parent}" if manifest.parent else "")
    typer.echo(f"{details.url}\n{made}, committed {manifest.created_at} by sparkring {manifest.code_version}")
    label = manifest.label + (f" ({label_words(fitted.label)})" if fitted.label else "")
    ids = f"{manifest.row_id} (made of each row's content)" if manifest.row_id_of else manifest.row_id
    typer.echo(f"task {manifest.task}, label {label}, row id {ids}, content {manifest.content_id[:16]}\n")
    print_table(["column", "kind"], [[field.name, describe_field(field)] for field in manifest.fields])
    print_table(["tensor", "type", "row shape", "columns"], [
        [spec.name, spec.dtype, str(spec.row_shape), ", ".join(spec.fields)] for spec in manifest.tensors])
    if features := (*fitted.numeric, *fitted.with_ids):
        print_table(["feature", "of", f"fitted on {fitted.train_rows:,} train rows"],
                     [[each.column, each.source, feature_words(each, train_rows=fitted.train_rows)] for each in features])
    print_table(["split", "rows", "files", "row groups", "MB"], [
        [name, f"{split.rows:,}", f"{len(split.files):,}", f"{sum(len(file.row_groups) for file in split.files):,}",
         f"{sum(file.bytes for file in split.files) / 1e6:,.1f}"] for name, split in manifest.splits.items()])
    if manifest.source:
        print_table(["source", "facts"], [
            [name, ", ".join(f"{key} {value}" for key, value in facts.items()) if isinstance(facts, Mapping) else str(facts)]
            for name, facts in manifest.source.items()])
    if details.quality:
        typer.echo(_quality_text(details.quality))


def _quality_text(quality: ShuffleQuality) -> str:
    changes = ", ".join(f"{share:.0%} on {width} ranks (chance gives {1 - 1 / width:.0%})" for width, share in quality.owner_change.items())
    lines = ["how train rows are mixed:", f"  rows that another rank reads in the next epoch: {changes}"]
    if quality.lag1_in_order is not None:
        lines.append(f"  correlation of a row's label with the next row's: {quality.lag1_in_order:+.3f} in the order of training, "
                     f"{quality.lag1_in_files:+.3f} in that of the files (first {quality.rows:,} rows)")
    return "\n".join(lines)


def _counts(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in rows.items())
