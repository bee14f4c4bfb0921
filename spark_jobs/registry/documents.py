"""The documents of the registry: a model version, and a change of the aliases. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from sparkring.conf.schema import Task
from sparkring.pipelines.data.stores.documents import StrictModel
from sparkring.pipelines.training.evaluation.intervals import Interval

ALIASES = ("champion", "candidate")
Act = Literal["promoted", "rolled back", "proposed", "kept"]
"""What a change did: a version became the champion; the champion before came back; a version became the candidate; the candidate
lost to the champion."""


class ModelFile(StrictModel):
    """A file of a model, as it was when the version was registered."""

    name: str
    """Relative to the run's folder."""
    bytes: int
    sha256: str


class ModelVersion(StrictModel):
    """A trained and evaluated model; never changed once it is registered."""

    format: Literal[1] = 1
    version: int
    name: str
    """The config's name."""
    task: Task
    run: str
    """The run that trained it, by its name in the workspace."""
    dataset_url: str
    dataset_version: int
    content_id: str
    weights_sha256: str
    files: tuple[ModelFile, ...]
    split: str
    """The held-out rows that the metrics are of."""
    rows: int
    metrics: dict[str, float]
    intervals: dict[str, Interval]
    """95 % confidence intervals of those metrics that have one."""
    code_version: str
    created_at: str
    """UTC, ISO 8601."""


class AliasChange(StrictModel):
    """One change of the aliases; it holds all of them, so the latest one is all there is to read."""

    format: Literal[1] = 1
    number: int
    act: Act
    version: int
    """The version that the change is about."""
    champion: int | None = None
    candidate: int | None = None
    reason: str
    at: str
    """UTC, ISO 8601."""
    claim: str = ""
    """Differs in any two changes: a store may take a document that equals one that is there for the writer's own."""


def champions_before(history: Iterable[AliasChange]) -> list[int]:
    """The champions that a rollback returns to, the latest last; the present one is not among them.

    A rollback takes its champion off the list, so the next rollback goes one further back.

        promoted 1, promoted 2, promoted 3     [1, 2]     a rollback brings 2 back
        ... rolled back to 2                   [1]        the next one brings 1 back
    """
    before: list[int] = []
    champion: int | None = None
    for change in history:
        if change.act == "rolled back":
            before.pop()
        elif change.champion != champion and champion is not None:
            before.append(champion)
        champion = change.champion
    return before
