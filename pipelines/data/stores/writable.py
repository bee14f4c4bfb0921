"""Checking that a store can be written, before work is spent on what it will hold."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sparkring.errors import SparkringError, StorageError
from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.local import LocalStore


def require_writable(store: Store, *, folders: Collection[str] = (".",), what: str) -> None:
    """Write a small file into each folder and delete it again. Local folders that this creates are removed again, too.

    Args:
        store: The store to check.
        folders: Relative to the store.
        what: Names the store in the error, e.g. ``run folder``.
    Raises:
        StorageError: one of them cannot be written.
    """
    missing = _missing_folders(store)
    with write_errors_explained(store, what=what):
        for folder in folders:
            probe = f"{folder}/.{uuid.uuid4().hex}.probe".removeprefix("./")
            store.put(probe, b"")
            store.delete(probe)
    with suppress(OSError):  # a folder is no longer empty: another program wrote a file there
        for made in missing:
            made.rmdir()


def _missing_folders(store: Store) -> list[Path]:
    """The folders of a local store's path that do not exist yet, the deepest first."""
    if not isinstance(store, LocalStore):
        return []
    return [folder for folder in (store.root, *store.root.parents) if not folder.exists()]


@contextmanager
def write_errors_explained(store: Store, *, what: str) -> Iterator[None]:
    """Turn the operating system's errors in the block, such as a full disk, into one sentence.

    Raises:
        StorageError: the block raised an ``OSError`` that was not one of ours.
    """
    try:
        yield
    except SparkringError:
        raise
    except OSError as error:
        raise StorageError(
            f"{error.filename or store.url} cannot be written: {error.strerror or error}; the {what} {store.url} needs write permission "
            "and free space: fix permissions, free disk space, or set another workspace.") from None
