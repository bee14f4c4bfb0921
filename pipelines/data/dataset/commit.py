"""Committing a dataset version: first the files, in a folder that no manifest names, then the manifest."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TypeVar

from sparkring.errors import CommitConflict
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset

_Written = TypeVar("_Written")


def commit_version(dataset: Dataset, write: Callable[[str], _Written], describe: Callable[[str, _Written], Manifest]) -> Manifest:
    """Write the files of a version and commit it; an error before the commit leaves the dataset unchanged.

    Args:
        dataset: Where to commit.
        write: Writes all files below a new folder of the dataset's store, and returns what it wrote.
        describe: Makes the manifest from the folder's id and what was written.
    Returns:
        The committed manifest.
    Raises:
        CommitConflict: another writer committed this version number first; the files written here are deleted.
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
    except CommitConflict:  # only after a lost race it is certain that no manifest names the files
        dataset.store.delete(folder)
        raise
