"""The limits of a model that its data and its evaluation show, one sentence each. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.training.job.model_files import ModelCard
from sparkring.spark_jobs.reporting.facts.gather import Workspace
from sparkring.spark_jobs.reporting.facts.words import code, count, several, share

FEW_ROWS = 1000
"""A figure of fewer held-out rows is named as uncertain."""
RARE_ROWS, RARE_SHARE = 100, 0.05
"""A class of fewer rows, or of a smaller share, is named as rare."""
OFTEN_MISSING = 0.2


def limits(card: ModelCard, manifest: Manifest, workspace: Workspace) -> tuple[str, ...]:
    """The limits of a model; ``workspace`` holds its evaluation, if it is of this model."""
    return (*_of_quality(workspace), *_of_labels(manifest, workspace), *_of_features(card), *_of_groups(workspace),
            "Not measured: how the quality changes with time.")


def _of_quality(workspace: Workspace) -> Iterator[str]:
    quality = workspace.quality
    evaluated = quality.network.rows if quality else workspace.mean_quality.rows if workspace.mean_quality else None
    if evaluated is None:
        yield "It was not evaluated beside baselines: run `sparkring evaluate`, then export again."
    elif evaluated < FEW_ROWS:
        yield f"It was evaluated on only {count(evaluated)} rows."
    if quality and len(quality.baselines) == 1:
        yield f"The only baseline that it was compared with: {quality.baselines[0].title.lower()}."
    if quality and not quality.beaten:
        yield f"A baseline is at least as good in {' or '.join(column.title for column in quality.decisive)}."


def _of_groups(workspace: Workspace) -> Iterator[str]:
    if workspace.explained is None or workspace.explained.slices is None:
        yield "Not measured: the quality for groups of rows."


def _of_labels(manifest: Manifest, workspace: Workspace) -> Iterator[str]:
    train = manifest.splits["train"]
    if train.positives is not None and train.rows:
        rarer, label = min((train.positives, 1), (train.rows - train.positives, 0))
        if rarer < RARE_ROWS or rarer / train.rows < RARE_SHARE:
            yield f"{code(manifest.label)} is {label} in only {count(rarer)} of {count(train.rows)} train rows."
    rows = workspace.mean_quality.rows_by_class if workspace.mean_quality else ()
    rare = [f"{code(name)} ({count(number)})" for name, number in zip(manifest.preprocessing.classes, rows, strict=False)
            if number < RARE_ROWS]
    if rare:
        yield f"Classes with few evaluated rows, whose figures say little: {', '.join(rare)}."


def _of_features(card: ModelCard) -> Iterator[str]:
    fitted = card.preprocessing
    if card.model.kind != "tabular":
        return
    for feature in fitted.numeric:
        if feature.nulls > OFTEN_MISSING * fitted.train_rows:
            yield f"{code(feature.column)} is missing in {share(feature.nulls / fitted.train_rows)} of train rows."
    if fitted.categorical:
        yield "Texts that few or no train rows had count as missing."
    if fitted.hashed:
        yield f"Different values of {several(len(fitted.hashed), 'hashed column')} share ids."
