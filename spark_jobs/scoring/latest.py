"""The document that names the latest scores. Needs no Spark.

    <workspace>/scores/_scores.json          names the folder of the latest finished scoring; replaced atomically
    <workspace>/scores/<folder>/*.parquet    written before

Each scoring writes a new folder and is named once it is complete, so a reader finds the old scores or the new ones. The
document's name begins with ``_`` because tools that read all files below a folder skip such names.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.documents import read_model

DOCUMENT = "_scores.json"


class Scores(BaseModel):
    """One finished scoring."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

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


def commit_scores(store: Store, scores: Scores) -> None:
    """Make ``scores`` the latest and delete the previous ones if they are of the same split. Scores of a caller's rows all stay."""
    before = latest_scores(store)
    store.put(DOCUMENT, scores.model_dump_json(indent=1).encode())
    if before is not None and before.split is not None and before.split == scores.split and before.folder != scores.folder:
        store.delete(before.folder)
