"""The interface of a store: files, and one atomic operation, which creates a document unless it exists.

A dataset version, a checkpoint or a model must become visible all at once. So its large files are written first, and
``put_if_absent`` of one small JSON document that names them is the commit. Readers follow documents and never list a
folder of data, so they see the old state or the new one, and never a part of one.

``open.py`` chooses the kind of store for a URL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlparse

import pyarrow as pa

from sparkring.errors import ConfigError
from sparkring.pipelines.data.stores.pieces import Pieces


@dataclass(frozen=True)
class Entry:
    """A file; or a folder, in stores that have folders."""

    name: str
    """Relative to the store's folder."""
    bytes: int
    changed: float
    """Time of the last change, in seconds since 1970 by the store's clock."""
    is_folder: bool = False


class Readable(Protocol):
    """The part of a store that readers of data files use."""

    url: str

    def path(self, name: str) -> str:
        """The address of ``name`` in the form that Spark takes."""
        ...

    def open_input(self, name: str) -> pa.NativeFile:
        """Open ``name`` for random access; FileNotFoundError if it does not exist."""
        ...

    def size(self, name: str) -> int | None:
        """Bytes of the file ``name``; None if there is no such file."""
        ...


class Documents(Protocol):
    """The part of a store that small documents use; a lease (lease.py) needs no more."""

    def read(self, name: str) -> bytes:
        """The bytes of ``name``; FileNotFoundError if it does not exist."""
        ...

    def names(self, folder: str) -> list[str]:
        """Names of the files directly inside ``folder``, sorted; empty if the folder does not exist."""
        ...

    def put_if_absent(self, name: str, data: bytes) -> None:
        """Create ``name`` with ``data`` atomically and durably; CommitConflict if ``name`` exists already."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Create or replace ``name`` with ``data`` atomically."""
        ...

    def delete(self, name: str) -> None:
        """Remove a file, or a folder with everything in it; does nothing if it does not exist."""
        ...


class Store(Readable, Documents, Protocol):
    """A folder of files addressed by relative, forward-slash names."""

    def tree(self, folder: str) -> Iterator[Entry]:
        """Everything below ``folder``, at any depth and in any order; nothing if the folder does not exist."""
        ...

    def check_commits(self) -> None:
        """Check that ``put_if_absent`` works here, before work is spent on what it will commit.

        Raises:
            ConfigError, EnvironmentProblem: two writers could both commit.
        """
        ...

    def put_pieces(self, name: str, pieces: Pieces) -> None:
        """Create or replace ``name`` with large data in several pieces; most stores need not join them in memory."""
        ...

    def upload(self, source: Path, name: str) -> None:
        """Create or replace ``name`` with a copy of a local file, atomically."""
        ...

    def move(self, source: str, target: str) -> None:
        """Rename a file that any program may have written, and make its content survive a power cut."""
        ...

    def lock(self, name: str, *, busy: str, lost: Callable[[], None] = lambda: None) -> AbstractContextManager[None]:
        """Keep other processes out of the block; CommitConflict if one is inside.

        Args:
            name: The lock's own name, used for nothing else.
            busy: Text of the CommitConflict.
            lost: Called in another thread if the lock is lost before the block ends. A lease (lease.py) is lost when
                its process pauses so long that another process takes over.
        Raises:
            ConfigError: this kind of store has no locks.
        """
        ...

    def is_locked(self, name: str) -> bool:
        """Whether a process holds the lock ``name`` now. Only for showing: it may change at once, and a lease is watched for seconds."""
        ...


def local_path(address: str) -> Path:
    """The path that a plain path or a ``file:`` URL stands for.

    Raises:
        ConfigError: the URL holds a ? or #, which would end its path.
    """
    parsed = urlparse(address)
    if parsed.scheme != "file":
        return Path(address)
    if parsed.query or parsed.fragment or address.endswith(("?", "#")):
        raise ConfigError(f"{address} holds ? or #, which end the path of a URL; write them as %3F and %23, or give a plain path.")
    return Path(unquote(parsed.path))


def numbered(store: Documents, folder: str) -> list[int]:
    """Numbers N of the documents ``<folder>/N.json``, ascending."""
    matches = (re.fullmatch(r"(0|[1-9]\d{0,17})\.json", name, re.ASCII) for name in store.names(folder))
    return sorted(int(match.group(1)) for match in matches if match)


def require_inside(name: str, url: str) -> str:
    """Return ``name`` if it stays inside the store at ``url``.

    Raises:
        ConfigError: it is absolute, or climbs with ``..``.
    """
    if name.startswith("/") or ".." in name.split("/"):
        raise ConfigError(f"{name!r} leads out of {url}; give a relative name without '..'.")
    return name


def require_not_all(name: str, url: str) -> str:
    """Return ``name`` if it names a file or folder inside the store at ``url``, not the store itself.

    Raises:
        ConfigError: it names the store itself, or leads out of it.
    """
    if require_inside(name, url).strip("./") == "":
        raise ConfigError(f"{name!r} is {url} itself, which is never deleted; name a file or folder inside it.")
    return name
