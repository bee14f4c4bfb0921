"""Whether a store can be written, asked before work is spent on what goes there."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sparkring.errors import SparkringError, StorageError
from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.local import LocalStore


def require_writable(store: Store, *, folders: Collection[str] = (".",), what: str) -> None:
    """Write a small file into each folder and delete it again. A local store that was not there is gone again, too.

    Args:
        store: Where.
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
    with suppress(OSError):  # one holds a folder that was asked for, or somebody else's file by now
        for made in missing:
            made.rmdir()


def _missing_folders(store: Store) -> list[Path]:
    """Folders that a local store lacks on the way to it, the deepest first."""
    if not isinstance(store, LocalStore):
        return []
    return [folder for folder in (store.root, *store.root.parents) if not folder.exists()]


@contextmanager
def write_errors_explained(store: Store, *, what: str) -> Iterator[None]:
    """Turn errors of the operating system into one sentence: missing permissions, a full disk.

    Raises:
        StorageError: the block raised an ``OSError`` that was not one of ours.
    """
    try:
        yield
    except SparkringError:
        raise
    except OSError as error:
        raise StorageError(
            f"{error.filename or store.url} cannot be written: {error.strerror or error}; the {what} {store.url} must be writable and "
            "have free space: fix permissions, free disk space, or set another workspace.") from None
