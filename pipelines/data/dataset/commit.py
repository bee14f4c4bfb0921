"""Making a dataset version: files first, in a folder that nobody knows of, then the one document that names them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TypeVar

from sparkring.errors import CommitConflict
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset

_Written = TypeVar("_Written")


def commit_version(dataset: Dataset, write: Callable[[str], _Written], describe: Callable[[str, _Written], Manifest]) -> Manifest:
    """Write the files of a version and commit it; an error before the commit leaves the dataset as it was.

    Args:
        dataset: Where to commit.
        write: Given a fresh folder, a name inside the dataset's store, writes all files below it and says what it wrote.
        describe: Given the folder's id and what was written, makes the manifest.
    Returns:
        The manifest that is visible now.
    Raises:
        CommitConflict: another writer took the version number meanwhile; the files written here are gone again.
    """
    data_id = uuid.uuid4().hex[:16]
    folder = f"data/{data_id}"
    try:
        manifest = describe(data_id, write(folder))
    except BaseException:
        dataset.store.delete(folder)
        raise
    try:
        return dataset.commit(manifest)
    except CommitConflict:  # only a lost race is certain to have left the files unseen, so only then they go
        dataset.store.delete(folder)
        raise
