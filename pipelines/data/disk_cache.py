"""Local copies of a remote store's data files: fetched once by one rank of the host, read by all, the longest unused go first.

Data files never change once a version names them, so a copy is never out of date; its name is a hash of where it came from.
Ranks agree through locks on files, which the kernel frees however a process ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from sparkring.errors import ConfigError
from sparkring.pipelines.data.store import Readable

MB = 1 << 20
ABANDONED_S = 3600.0
"""Age of an unfinished copy that nobody works on any more."""


class DiskCache:
    """Opens a store's files through copies in a local folder."""

    def __init__(self, store: Readable, folder: Path, *, limit_mb: float) -> None:
        """Copy what is opened from ``store`` into ``folder``, up to ``limit_mb``; a larger file is read where it lies.

        Raises:
            ConfigError: the folder is another user's, or others may write to it: they could change what is trained on.
        """
        self._store, self._folder, self._limit = store, folder, limit_mb * MB
        self.url = store.url
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        facts = folder.stat()
        if facts.st_uid != os.getuid() or facts.st_mode & 0o022:
            raise ConfigError(f"{folder} belongs to another user or may be written to by others, so copies in it could be changed; "
                              "set train.cache_folder to a folder of your own.")

    def path(self, name: str) -> str:
        """The address of ``name`` in the store."""
        return self._store.path(name)

    def size(self, name: str) -> int | None:
        """Bytes of the file ``name`` in the store."""
        return self._store.size(name)

    def open_input(self, name: str) -> pa.NativeFile:
        """Open the copy of ``name``, made now if there is none."""
        copy = self._folder / hashlib.sha256(f"{self.url}/{name}".encode()).hexdigest()
        with self._locked(copy.name):
            with suppress(FileNotFoundError):
                return _opened(copy)
            size = self._store.size(name)
            if size is None or size > self._limit:
                return self._store.open_input(name)  # and if it is not there, let the store say so
            self._fetch(name, copy)
            opened = _opened(copy)  # before room is made: what is open stays readable
        self._make_room()
        return opened

    def _fetch(self, name: str, copy: Path) -> None:
        partial = copy.with_name(f".{copy.name}.{uuid.uuid4().hex}.part")
        try:
            with self._store.open_input(name) as source, partial.open("xb") as target:
                shutil.copyfileobj(source, target, 8 * MB)
            partial.replace(copy)
        finally:
            partial.unlink(missing_ok=True)

    def _make_room(self) -> None:
        """Remove copies, the longest unused first, until the rest is within the limit; and what killed processes left."""
        with self._locked("room"):
            copies, oldest = [], time.time() - ABANDONED_S
            for entry in os.scandir(self._folder):
                facts = entry.stat()
                if entry.name.endswith(".part") and facts.st_mtime < oldest:
                    Path(entry.path).unlink(missing_ok=True)
                elif not entry.name.startswith("."):
                    copies.append((facts.st_mtime, facts.st_size, entry.path))
            held = sum(size for _, size, _ in copies)
            for _, size, path in sorted(copies):
                if held <= self._limit:
                    return
                Path(path).unlink(missing_ok=True)
                held -= size

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with (self._folder / f".{name[:16]}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _opened(copy: Path) -> pa.NativeFile:
    """Open a copy and note that it was used."""
    os.utime(copy)
    return pa.OSFile(str(copy))
