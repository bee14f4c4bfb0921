"""Files and the one atomic act on them: put a document where none is yet.

Whatever must become visible at once (a dataset version, a checkpoint, a model) is committed by ``put_if_absent`` of
one small JSON document that names the large files, which were written before. A reader follows documents and never
lists a folder of data, so it sees the old state or the new one and never half of one.

Local disk is served here; ``open_store`` refuses other schemes by name.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlparse

from sparkring.errors import CommitConflict, ConfigError


class Store(Protocol):
    """A folder of files addressed by relative, forward-slash names."""

    url: str

    def path(self, name: str) -> str:
        """The address of ``name`` as pyarrow and Spark take it."""
        ...

    def read(self, name: str) -> bytes:
        """The bytes of ``name``; FileNotFoundError if there is none."""
        ...

    def names(self, folder: str) -> list[str]:
        """Names of the files directly inside ``folder``; empty if there is no such folder."""
        ...

    def put_if_absent(self, name: str, data: bytes) -> None:
        """Make ``data`` visible as ``name`` at once; CommitConflict if ``name`` is there already."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Make ``data`` visible as ``name`` at once, in place of what may be there."""
        ...

    def delete(self, name: str) -> None:
        """Remove a file or a folder with all it holds; nothing happens if it is not there."""
        ...

    def lock(self, name: str, *, busy: str) -> AbstractContextManager[None]:
        """Keep other processes out of the block; CommitConflict with the text ``busy`` if one is inside."""
        ...


class LocalStore:
    """A folder of the local file system (or of one that is mounted, such as NFS or a Databricks volume)."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.url = self.root.as_uri()

    def path(self, name: str) -> str:
        """Absolute path of ``name``, which may not lead out of the folder."""
        if name.startswith("/") or ".." in name.split("/"):
            raise ConfigError(f"{name!r} leads out of {self.url}; names inside a store are relative and without '..'.")
        return str(self.root / name) if name else str(self.root)

    def read(self, name: str) -> bytes:
        """The bytes of ``name``."""
        return Path(self.path(name)).read_bytes()

    def names(self, folder: str) -> list[str]:
        """Names of the files directly inside ``folder``, sorted."""
        try:
            return sorted(entry.name for entry in os.scandir(self.path(folder)) if entry.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def put_if_absent(self, name: str, data: bytes) -> None:
        """Write beside, then link: the link fails if the name is taken, whoever took it."""
        target = Path(self.path(name))
        partial = self._write_beside(target, data)
        try:
            os.link(partial, target)
        except FileExistsError:
            raise CommitConflict(f"{target} was committed by another writer first; nothing was changed. Read it and try again.") from None
        finally:
            partial.unlink()
        _sync_folder(target.parent)

    def put(self, name: str, data: bytes) -> None:
        """Write beside, then rename over."""
        target = Path(self.path(name))
        self._write_beside(target, data).replace(target)
        _sync_folder(target.parent)

    def delete(self, name: str) -> None:
        """Remove a file or folder inside this one."""
        path = Path(self.path(name))
        if path == self.root:
            raise ConfigError(f"{name!r} is {self.url} itself; only what lies inside a store is deleted.")
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    @contextmanager
    def lock(self, name: str, *, busy: str) -> Iterator[None]:
        """Hold a lock on the file ``name``; the kernel frees it however this process ends."""
        path = Path(self.path(name))
        _make_folder(path.parent)
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommitConflict(busy) from None
            yield

    @staticmethod
    def _write_beside(target: Path, data: bytes) -> Path:
        _make_folder(target.parent)
        partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
        try:
            with partial.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        return partial


def open_store(url: str) -> Store:
    """Open the folder at ``url``: a plain path or a ``file:`` URL.

    Raises:
        ConfigError: the scheme is not served.
    """
    scheme = urlparse(url).scheme
    if scheme in ("", "file"):
        return LocalStore(Path(unquote(urlparse(url).path)) if scheme else Path(url))
    raise ConfigError(f"{url}: cannot store under {scheme}:, only on local or mounted folders; give a path or a file: URL.")


def numbered(store: Store, folder: str) -> list[int]:
    """Numbers N of the documents ``<folder>/N.json``, ascending."""
    matches = (re.fullmatch(r"(\d+)\.json", name) for name in store.names(folder))
    return sorted(int(match.group(1)) for match in matches if match)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise ConfigError(f"cannot make the folder {folder}: {error.strerror}; set a workspace that can be written to.") from None


def _sync_folder(folder: Path) -> None:
    """Make a new name in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
