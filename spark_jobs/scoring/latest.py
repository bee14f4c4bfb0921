"""The document that names the scores, one folder a split. Needs no Spark.

    <run>/scores/_scores.json                  names the folder of each split's latest scoring; replaced atomically
    <run>/scores/_<folder>/<folder>/*.parquet  a draft: a scoring that is being written
    <run>/scores/<folder>/*.parquet            a committed one

Tools that read all files below a folder skip names that begin with ``_``, so all folders read as one table show no row of a split
twice, at any time:

    1. a scoring writes a draft       killed here: the draft stays, unread, and may be deleted
    2. the document names it          from here on it counts; killed here: the next scoring takes steps 3 and 4
    3. the split's old folder is deleted
    4. the draft's files are moved

Scores of rows that the caller brought all stay. One scoring at a time commits in a run; between steps 2 and 4 the named folder
may lack files, which ``finish_commit`` mends.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.documents import read_model

DOCUMENT = "_scores.json"


class Scores(BaseModel):
    """One finished scoring."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    folder: str
    """Relative to the scores' URL."""
    rows: int
    split: str | None
    """The split of the dataset version; None for rows that the caller brought."""
    weights_sha256: str
    """The weights of the model that scored."""
    dataset_url: str
    """The dataset that the model was trained on."""
    dataset_version: int
    content_id: str
    """The content of that version."""
    created_at: str
    """UTC, ISO 8601."""
    replaces: str | None = None
    """The folder of the same split's scores before these."""
    others: tuple[Scores, ...] = ()
    """The latest scorings of other splits; theirs is empty."""


def latest_scores(store: Store) -> Scores | None:
    """The latest finished scoring in the scores' folder, or None.

    Raises:
        DocumentDamaged: the document cannot be read.
    """
    try:
        return read_model(store, DOCUMENT, Scores, expected="the name of a finished scoring",
                          remedy="delete it and run `sparkring score` again; the folders beside it hold the earlier scores")
    except FileNotFoundError:
        return None


def scores_of(store: Store, split: str | None) -> Scores | None:
    """The scores of a split of a dataset version, or None.

    Raises:
        DocumentDamaged: the document cannot be read.
    """
    return next((each for each in _kept(latest_scores(store)) if each.split == split), None)


def draft_of(folder: str) -> str:
    """Where the files of ``folder`` are written before they count: under its name, in a folder that readers of tables skip."""
    return f"_{folder}/{folder}"


def delete_draft(store: Store, folder: str) -> None:
    """Delete what is left of the draft of ``folder``."""
    store.delete(f"_{folder}")


def commit_scores(store: Store, scores: Scores) -> None:
    """Make the draft of ``scores`` the latest ones, in place of the previous ones of the same split."""
    finish_commit(store)
    kept = _kept(latest_scores(store))
    replaced = next((each.folder for each in kept if each.split == scores.split and each.folder != scores.folder), None)
    others = tuple(each.model_copy(update={"others": ()}) for each in kept if each.split != scores.split)
    document = scores.model_copy(update={"replaces": replaced, "others": others})
    store.put(DOCUMENT, document.model_dump_json(indent=1).encode())
    finish_commit(store)


def finish_commit(store: Store) -> None:
    """Take the steps of the latest commit that are left: none, unless it was killed between them.

    Raises:
        DocumentDamaged: the document cannot be read.
    """
    latest = latest_scores(store)
    if latest is None:
        return
    if latest.replaces is not None:
        store.delete(latest.replaces)
    draft = draft_of(latest.folder)
    for name in (name for name in store.names(draft) if name.endswith(".parquet")):
        store.move(f"{draft}/{name}", f"{latest.folder}/{name}")
    delete_draft(store, latest.folder)


def _kept(latest: Scores | None) -> list[Scores]:
    """The scores of all splits; those of a caller's rows are nobody's to replace."""
    return [] if latest is None else [each for each in (latest, *latest.others) if each.split is not None]
