"""The top of the report: one paragraph and a row of figures about the training and its result. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparkring.spark_jobs.reporting.facts.gather import Workspace
from sparkring.spark_jobs.reporting.facts.quality import BinaryQuality, RegressionQuality
from sparkring.spark_jobs.reporting.facts.run import RunFacts
from sparkring.spark_jobs.reporting.facts.words import count, duration, layers, several


@dataclass(frozen=True)
class Tile:
    """One figure."""

    label: str
    value: str
    note: str
    good: bool | None = None
    """Whether the figure is good; None if it is no verdict."""


def headline(workspace: Workspace) -> str:
    """One to three sentences about what is known."""
    return " ".join(_sentences(workspace)) or "Nothing has been prepared or trained here yet."


def tiles(workspace: Workspace) -> tuple[Tile, ...]:
    """The most important figures."""
    return (*(_quality_tiles(workspace.quality) if workspace.quality else ()), *(_run_tiles(workspace.run) if workspace.run else ()))


def _sentences(workspace: Workspace) -> Iterator[str]:
    run, quality, data = workspace.run, workspace.quality, workspace.data
    if run:
        yield _training(run, workspace)
    elif data:
        yield f"Version {data.version} of the dataset holds {count(data.rows)} rows; nothing has been trained on it yet."
    if quality:
        label = f"\u201c{data.label}\u201d " if data else ""
        yield f"{'It' if run else 'The network'} predicts {label}on {_comparison(quality)}"


def _training(run: RunFacts, workspace: Workspace) -> str:
    """The sentence about the training."""
    splits = workspace.data.splits if workspace.data else ()
    rows = "".join(f" over {count(split.rows)} rows" for split in splits if split.name == "train")
    network = f"A network ({layers(workspace.card.model)})" if workspace.card else "A network"
    ranks, epochs, spent = several(run.size, "Horovod rank"), several(len(run.epochs), "epoch"), duration(run.wall_s)
    if run.finished:
        early = f" It {run.ended_early}." if run.ended_early else ""
        return f"{network} was trained on {ranks} for {epochs}{rows} in {spent}.{early}"
    return f"{network} is being trained on {ranks}: {epochs}{rows} and {several(run.steps, 'step')} so far, in {spent}."


def _comparison(quality: BinaryQuality | RegressionQuality) -> str:
    """The rows, the best-known metric beside the baselines', and who is better."""
    shown, network = quality.decisive[0], quality.models[0]
    others = " and ".join(f"{shown.text(other.figure(shown))} for the {other.title.lower()}" for other in quality.baselines)
    all_of_them = "both" if len(quality.baselines) > 1 else "that"
    verdict = "beats" if quality.beaten else "does not beat"
    where = "" if quality.beaten else f" in {' and '.join(column.title for column in quality.decisive)}"
    return (f"{count(quality.network.rows)} held-out {quality.split} rows with {'an' if shown.metric == 'r2' else 'a'} {shown.title} of "
            f"{shown.text(network.figure(shown))}, against {others}. It {verdict} {all_of_them}{where}.")


def _quality_tiles(quality: BinaryQuality | RegressionQuality) -> Iterator[Tile]:
    """The decisive metrics, each beside the best baseline's."""
    for column in quality.decisive:
        rival = quality.rival(column)
        yield Tile(f"held-out {column.title}", column.text(quality.models[0].figure(column)),
                   f"{rival.title.lower()} {column.text(rival.figure(column))}", quality.beats(rival, column))


def _run_tiles(run: RunFacts) -> Iterator[Tile]:
    if run.steps:
        yield Tile("rows a second", count(run.rows_per_s), f"{several(run.size, 'rank')} on {run.device}")
    restarts = len(run.generations) - 1
    work = several(run.steps, "step") + (f", {several(restarts, 'restart')}" if restarts else "")
    yield Tile("time to train", duration(run.wall_s), work)
    if run.exact is not None:
        yield Tile("each row, each epoch", "exactly once" if run.exact else "NOT once",
                   f"checked in {several(len(run.epochs), 'epoch')}", run.exact)
