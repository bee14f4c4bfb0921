"""Local copies of a remote store's data files: one rank of a host fetches a file, and all its ranks read the copy.

The least recently used copies are removed.

A copy is named by a hash of its origin and of the SHA-256 in the manifest, and is kept only if it has that SHA-256. So it is always the
version's file: a file rewritten under its old name (as adopted files may be) gets another copy. Ranks agree through file locks, which
the kernel frees however a process ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from sparkring.errors import ConfigError, DatasetError, StorageError
from sparkring.pipelines.data.dataset.manifest import DataFile
from sparkring.pipelines.data.stores.base import Readable

MB = 1 << 20
ABANDONED_S = 3600.0
"""Age, in seconds, after which an unfinished copy counts as abandoned."""
_COPY, _PARTIAL = re.compile(r"[0-9a-f]{64}"), re.compile(r"\.[0-9a-f]{64}\.[0-9a-f]{32}\.part")
"""Names of the files that may be removed."""
_ATTEMPTS = 2
"""Another rank may free space and remove a copy before the rank that made it has opened it."""


class DiskCache:
    """Opens a version's files through copies in a local folder."""

    def __init__(self, store: Readable, folder: Path, *, files: Iterable[DataFile], limit_mb: float) -> None:
        """Copy opened files from ``store`` into ``folder``, up to ``limit_mb``; a larger file is read from the store.

        Args:
            store: The dataset's store.
            folder: Created if it does not exist.
            files: The files to copy, as the manifest names them; others are read from the store.
            limit_mb: Size of all copies in the folder.
        Raises:
            ConfigError: the folder cannot be made; or it belongs to another user, is a link, or is writable by others: they could change
                the training data, or cause files elsewhere to be removed.
        """
        self._store, self._folder, self._limit = store, folder, limit_mb * MB
        self._files = {file.path: file for file in files}
        self.url = store.url
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(f"the folder {folder} for copies of the dataset's files cannot be made ({error.strerror}); set "
                              "train.cache_folder to a folder that exists, or can be made, on each host.") from error
        facts = folder.lstat()
        if facts.st_uid != os.getuid() or not stat.S_ISDIR(facts.st_mode) or facts.st_mode & 0o022:
            raise ConfigError(f"{folder} belongs to another user, is a link, or may be written to by others, so copies in it could be "
                              "changed; set train.cache_folder to a folder of your own.")

    def path(self, name: str) -> str:
        """The address of ``name`` in the store."""
        return self._store.path(name)

    def size(self, name: str) -> int | None:
        """Bytes of the file ``name`` in the store."""
        return self._store.size(name)

    def open_input(self, name: str) -> pa.NativeFile:
        """Open the copy of ``name``; it is made if there is none. If it cannot be, the store's file is opened.

        Raises:
            DatasetError: the store's file is not the one that the manifest names.
            StorageError: the store does not answer.
        """
        file, opened = self._files.get(name), None
        if file is not None and file.bytes <= self._limit:
            try:
                opened = self._open_copy(name, file)
            except StorageError:
                raise
            except OSError:  # the local disk is full or damaged; an error that was the store's comes again below
                pass
        return self._store.open_input(name) if opened is None else opened

    def _open_copy(self, name: str, file: DataFile) -> pa.NativeFile | None:
        """Open the copy, after it is made if there is none; None if the copies that were made are gone again, or have no room."""
        copy = self._folder / hashlib.sha256(f"{self.url}/{name} {file.sha256}".encode()).hexdigest()
        for _ in range(_ATTEMPTS):
            with self._locked(copy.name):
                found = _opened(copy, file)
                if found is not None or shutil.disk_usage(self._folder).free < file.bytes:
                    return found
                self._fetch(file, copy)
                made = _opened(copy, file)  # before space is freed: an open file stays readable
            if made is not None:
                self._make_room()
                return made
        return None

    def _fetch(self, file: DataFile, copy: Path) -> None:
        """Make the copy; it gets its name once it is complete and flushed."""
        partial = copy.with_name(f".{copy.name}.{uuid.uuid4().hex}.part")
        digest = hashlib.sha256()
        try:
            with self._store.open_input(file.path) as source, partial.open("xb") as target:
                while chunk := source.read(8 * MB):
                    digest.update(chunk)
                    target.write(chunk)
                target.flush()
                os.fsync(target.fileno())
            if digest.hexdigest() != file.sha256:
                raise DatasetError(f"{self.path(file.path)} has SHA-256 {digest.hexdigest()}, the manifest says {file.sha256}; the file "
                                   "changed after the version was committed. Restore it, or prepare a new version.")
            partial.replace(copy)
        finally:
            partial.unlink(missing_ok=True)

    def _make_room(self) -> None:
        """Remove the least recently used copies until the rest is within the limit, and files that killed processes
        left.
        """
        with self._locked("room"):
            copies, oldest = [], time.time() - ABANDONED_S
            for entry in os.scandir(self._folder):
                try:
                    facts = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # another rank has finished a copy and renamed it
                    continue
                if _PARTIAL.fullmatch(entry.name) and facts.st_mtime < oldest:
                    Path(entry.path).unlink(missing_ok=True)
                elif _COPY.fullmatch(entry.name):
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


def _opened(copy: Path, file: DataFile) -> pa.NativeFile | None:
    """Open a copy and mark it as used; None if it does not exist or is incomplete."""
    with suppress(FileNotFoundError):  # another rank may remove it between the two calls
        os.utime(copy)
        opened = pa.OSFile(str(copy))
        if opened.size() == file.bytes:
            return opened
        opened.close()
    return None
