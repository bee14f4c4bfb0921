"""Stores whose storage is out of reach when the test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from pathlib import Path

import pyarrow as pa

from sparkring.pipelines.data.stores.local import LocalStore


class AwayStore(LocalStore):
    """A local store that fails while ``away``."""

    away = False

    def put(self, name: str, data: bytes) -> None:
        """Or fail."""
        self._require_here()
        super().put(name, data)

    def size(self, name: str) -> int | None:
        """Or fail."""
        self._require_here()
        return super().size(name)

    def names(self, folder: str) -> list[str]:
        """Or fail."""
        self._require_here()
        return super().names(folder)

    def _require_here(self) -> None:
        if self.away:
            raise OSError("out of reach")


class BusyStore(LocalStore):
    """A local folder as object storage shows it that answers 503 for a while: names are listed, what is in them is not to be had.

    Args:
        root: The folder.
        error: Makes the error of a read.
        failures: Reads that fail before storage is back; None: it stays away.
        of: Beginnings of the names that are concerned.
    """

    def __init__(self, root: Path, *, error: Callable[[], OSError], failures: int | None, of: Collection[str] = ("",)) -> None:
        super().__init__(root)
        self._error, self._left, self._of = error, failures, tuple(of)
        self._guard = threading.Lock()
        self.failed = 0

    def read(self, name: str) -> bytes:
        """Or fail."""
        self._require_here(name)
        return super().read(name)

    def open_input(self, name: str) -> pa.NativeFile:
        """Or fail, as Arrow does."""
        self._require_here(name)
        return super().open_input(name)

    def _require_here(self, name: str) -> None:
        with self._guard:
            if name.startswith(self._of) and (self._left is None or self.failed < self._left):
                self.failed += 1
                raise self._error()
