"""Files and the one atomic act on them: put a document where none is yet.

Whatever must become visible at once (a dataset version, a checkpoint, a model) is committed by ``put_if_absent`` of
one small JSON document that names the large files, which were written before. A reader follows documents and never
lists a folder of data, so it sees the old state or the new one and never half of one.

This module holds the interface and what all kinds of stores share; ``open.py`` chooses the kind.
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
    """A file or, where the store has such, a folder."""

    name: str
    """Seen from the store's folder."""
    bytes: int
    changed: float
    """Seconds since 1970, by the store's clock."""
    is_folder: bool = False


class Readable(Protocol):
    """What a reader of data files needs of a store."""

    url: str

    def path(self, name: str) -> str:
        """The address of ``name`` as Spark takes it."""
        ...

    def open_input(self, name: str) -> pa.NativeFile:
        """Open ``name`` for reading at any place; FileNotFoundError if there is none."""
        ...

    def size(self, name: str) -> int | None:
        """Bytes of the file ``name``; None if there is no such file."""
        ...


class Store(Readable, Protocol):
    """A folder of files addressed by relative, forward-slash names."""

    def read(self, name: str) -> bytes:
        """The bytes of ``name``; FileNotFoundError if there is none."""
        ...

    def names(self, folder: str) -> list[str]:
        """Names of the files directly inside ``folder``, sorted; empty if there is no such folder."""
        ...

    def tree(self, folder: str) -> Iterator[Entry]:
        """Everything below ``folder``, at any depth and in no order; nothing if there is no such folder."""
        ...

    def check_commits(self) -> None:
        """See, before work is done, that ``put_if_absent`` keeps its promise here.

        Raises:
            ConfigError, EnvironmentProblem: two writers could both commit.
        """
        ...

    def put_if_absent(self, name: str, data: bytes) -> None:
        """Make ``data`` visible as ``name`` at once and for good; CommitConflict if ``name`` is there already."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Make ``data`` visible as ``name`` at once, in place of what may be there."""
        ...

    def put_pieces(self, name: str, pieces: Pieces) -> None:
        """The same with what is large and lies in several places; it is not joined in memory where that can be
        spared.
        """
        ...

    def upload(self, source: Path, name: str) -> None:
        """Make a copy of a file of this machine visible as ``name`` at once, in place of what may be there."""
        ...

    def move(self, source: str, target: str) -> None:
        """Give a file, whoever wrote it, another name, and see that what it holds outlives a power cut."""
        ...

    def delete(self, name: str) -> None:
        """Remove a file or a folder with all it holds; nothing happens if it is not there."""
        ...

    def lock(self, name: str, *, busy: str, lost: Callable[[], None] = lambda: None) -> AbstractContextManager[None]:
        """Keep other processes out of the block; CommitConflict with the text ``busy`` if one is inside.

        Args:
            name: Used for nothing else.
            busy: What to say then.
            lost: Called in another thread where the lock is lost before the block ends: storage that frees a lock only after a while
                (lease.py) may take it from a process that was away for as long.
        Raises:
            ConfigError: this kind of store has no way to do so.
        """
        ...


def local_path(address: str) -> Path:
    """The path that a plain path or a ``file:`` URL stands for.

    Raises:
        ConfigError: the URL ends early, since it holds a ? or #.
    """
    parsed = urlparse(address)
    if parsed.scheme != "file":
        return Path(address)
    if parsed.query or parsed.fragment or address.endswith(("?", "#")):
        raise ConfigError(f"{address} holds ? or #, with which the path of a URL ends; write them as %3F and %23, or give a plain path.")
    return Path(unquote(parsed.path))


def numbered(store: Store, folder: str) -> list[int]:
    """Numbers N of the documents ``<folder>/N.json``, ascending."""
    matches = (re.fullmatch(r"(0|[1-9]\d{0,17})\.json", name, re.ASCII) for name in store.names(folder))
    return sorted(int(match.group(1)) for match in matches if match)


def require_inside(name: str, url: str) -> str:
    """Return ``name`` if it stays inside the store at ``url``.

    Raises:
        ConfigError: it is absolute or climbs.
    """
    if name.startswith("/") or ".." in name.split("/"):
        raise ConfigError(f"{name!r} leads out of {url}; names inside a store are relative and without '..'.")
    return name


def require_not_all(name: str, url: str) -> str:
    """Return ``name`` if it stands for something inside the store at ``url``, not for all of it.

    Raises:
        ConfigError: it is the store itself, or leads out of it.
    """
    if require_inside(name, url).strip("./") == "":
        raise ConfigError(f"{name!r} is {url} itself; only what lies inside a store is deleted.")
    return name
