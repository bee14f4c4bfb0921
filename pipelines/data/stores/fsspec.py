"""A store on any file system that fsspec knows: gs:, abfs:, memory:, http:, sftp: and others with a package for fsspec.

Reading works on all of them. A commit needs an atomic create, which fails if the name exists:

    gs, gcs            create with x-goog-if-generation-match: 0     the server checks and writes in one operation
    abfs, abfss, az    create with If-None-Match: *                  the same
    memory             check and write under a lock                  only this process sees the files
    all others         fsspec promises none                          refused, unless the config promises one writer

Before the first commit the store tries the create, as on S3, and refuses an old package or a server that overwrites.
With one writer, a document is written to a temporary name and then moved. Credentials come from the places in which the
file system's own package and fsspec look (``FSSPEC_GS_TOKEN``, ``~/.config/fsspec``), never from a URL.

Source: https://cloud.google.com/storage/docs/request-preconditions and
https://learn.microsoft.com/en-us/rest/api/storageservices/specifying-conditional-headers-for-blob-service-operations
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from posixpath import dirname, split
from typing import Any
from urllib.parse import unquote, urlparse

import fsspec
import pyarrow as pa
from fsspec.registry import known_implementations

from sparkring.errors import CommitConflict, ConfigError, EnvironmentProblem, SparkringError, StorageError, nearest
from sparkring.pipelines.data.stores.base import Entry, require_inside, require_not_all
from sparkring.pipelines.data.stores.lease import is_leased, lease
from sparkring.pipelines.data.stores.pieces import Pieces
from sparkring.pipelines.data.stores.ranges import Ranges

_OBJECTS = frozenset({"gs", "gcs", "abfs", "abfss", "az", "memory"})
"""Schemes in which a file appears only once it is complete, and a create can fail if the name exists."""
_READ_ONLY = frozenset({"http", "https"})
"""A server may accept a PUT, but none has to rename files or to refuse a second create."""
_SPARK_SCHEMES = {"gcs": "gs", "az": "abfs"}
"""Hadoop's names of schemes that it calls otherwise."""
_PACKAGES = {"gs": "sparkring[gs]", "gcs": "sparkring[gs]", "abfs": "sparkring[abfs]", "abfss": "sparkring[abfs]", "az": "sparkring[abfs]",
             "http": "sparkring[http]", "https": "sparkring[http]"}
_MEMORY = threading.Lock()
"""Held during a create, which fsspec does in two steps; all memory: stores of a process share their files."""
_TIMES = ("mtime", "updated", "last_modified", "LastModified", "created")
"""Keys under which file systems report when a file changed."""


class FsspecStore:
    """A folder of a file system that fsspec opens."""

    def __init__(self, url: str, *, one_writer: bool = False) -> None:
        self.scheme = urlparse(url).scheme
        self._fs, root = _open(url, self.scheme)
        self._root = root.rstrip("/")
        self.url = url.rstrip("/")
        self._one_writer, self._tried = one_writer, False

    def path(self, name: str) -> str:
        """The address of ``name``, with Hadoop's name of the scheme if that differs."""
        scheme = _SPARK_SCHEMES.get(self.scheme, self.scheme)
        return f"{scheme}{self.url.removeprefix(self.scheme)}/{require_inside(name, self.url)}".rstrip("/")

    def open_input(self, name: str) -> pa.NativeFile:
        """Open the file; small reads of neighbouring bytes share a request."""
        with self._explained(name):
            return pa.PythonFile(Ranges(self._fs, self._path(name)), mode="r")

    def read(self, name: str) -> bytes:
        """The bytes of ``name``."""
        with self._explained(name):
            data: bytes = self._fs.cat_file(self._path(name))
        return data

    def size(self, name: str) -> int | None:
        """Bytes of the file ``name``; None if there is no such file."""
        try:
            with self._explained(name):
                info = self._fs.info(self._path(name))
        except FileNotFoundError:
            return None
        return int(info["size"] or 0) if info["type"] == "file" else None

    def names(self, folder: str) -> list[str]:
        """Names of the files directly inside ``folder``, sorted."""
        return sorted(name.rpartition("/")[2] for name, info in self._listed(folder) if info["type"] == "file")

    def tree(self, folder: str) -> Iterator[Entry]:
        """Everything below ``folder``, one listing for each folder. An entry without a time counts as changed now."""
        for name, info in self._listed(folder):
            is_folder = info["type"] == "directory"
            yield Entry(name, 0 if is_folder else int(info["size"] or 0), _changed(info), is_folder)
            if is_folder:
                yield from self.tree(name)

    def check_commits(self) -> None:
        """Check that a second writer would be refused, or that the config rules one out.

        Raises:
            ConfigError: this kind of store cannot refuse a second writer, and the config does not rule one out.
            EnvironmentProblem: this kind of store can refuse one, but this server or package does not.
        """
        if self.scheme in _READ_ONLY:
            raise self._cannot_be_written()
        if self.scheme not in _OBJECTS:
            if not self._one_writer:
                raise ConfigError(f"{self.url}: {self.scheme}: addresses cannot refuse a second writer of the same version; set "
                                  "dataset_url to a local folder, s3:, hdfs:, gs: or abfs:, or set dataset_one_writer=true if nobody else "
                                  "writes there.")
        elif not self._tried:
            self._try_create()

    def put_if_absent(self, name: str, data: bytes) -> None:
        """One create that fails if the name exists; with one writer, a check and then ``put``."""
        self.check_commits()
        with self._explained(name):
            if self.scheme in _OBJECTS:
                made = self._create(name, data)
            else:
                made = not self._fs.exists(self._path(name))
                if made:
                    self.put(name, data)
        if not made:
            raise CommitConflict(f"{self.url}/{name} was committed by another writer first; nothing was changed. Read it and try again.")

    def put(self, name: str, data: bytes) -> None:
        """One write if files appear only once complete; else a write to a temporary name, and a move to ``name``."""
        with self._beside(name) as partial:
            self._fs.pipe_file(partial, data)

    def put_pieces(self, name: str, pieces: Pieces) -> None:
        """As ``put``; the pieces are joined in memory, since fsspec takes only one piece."""
        self.put(name, b"".join(pieces))

    def upload(self, source: Path, name: str) -> None:
        """As ``put``, from a local file."""
        with self._beside(name) as partial:
            self._fs.put_file(str(source), partial)

    def move(self, source: str, target: str) -> None:
        """Rename, or copy and delete if the file system has no rename."""
        with self._explained(source):
            self._make_folder(self._path(target))
            self._fs.mv(self._path(source), self._path(target))

    def delete(self, name: str) -> None:
        """Remove a file, or a folder with everything in it."""
        path = self._path(require_not_all(name, self.url))
        with suppress(FileNotFoundError), self._explained(name):
            self._fs.rm(path, recursive=True)

    def lock(self, name: str, *, busy: str, lost: Callable[[], None] = lambda: None) -> AbstractContextManager[None]:
        """Hold a lease. It needs an atomic create, and files that other processes see.

        Raises:
            ConfigError: this file system lacks one of them.
        """
        if self.scheme not in _OBJECTS or self.scheme == "memory":
            raise ConfigError(f"{self.url} cannot be locked against a second writer; "
                              "set workspace to a local or mounted folder, s3:, hdfs:, gs: or abfs:, and dataset_url to this address.")
        return lease(self, name, busy=busy, lost=lost)

    def is_locked(self, name: str) -> bool:
        """Whether a process renews the lease ``name``."""
        return is_leased(self, name)

    def _path(self, name: str) -> str:
        return f"{self._root}/{require_inside(name, self.url)}".rstrip("/")

    def _listed(self, folder: str) -> list[tuple[str, dict[str, Any]]]:
        """(name relative to the store's folder, fsspec's facts) of everything directly inside ``folder``."""
        path = self._path(folder)
        try:
            with self._explained(folder):
                self._fs.invalidate_cache()  # of listings: another writer's commit must be seen
                found = self._fs.ls(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = ((unquote(info["name"]) if self.scheme in _READ_ONLY else info["name"]).rstrip("/") for info in found)
        return [(f"{folder}/{name.rpartition('/')[2]}".lstrip("/"), info) for name, info in zip(names, found, strict=True) if name != path]

    def _create(self, name: str, data: bytes) -> bool:
        """Create ``name``; False if another writer has created it.

        A client repeats a request whose answer was lost, and then finds its own document. Documents of two writers
        always differ (a manifest names a folder drawn at random), so an equal document is our own.
        """
        path = self._path(name)
        with _MEMORY if self.scheme == "memory" else nullcontext():
            try:
                self._fs.pipe_file(path, data, mode="create")
            except FileExistsError:
                return bool(self._fs.cat_file(path) == data)
        return True

    def _try_create(self) -> None:
        """Check that the second of two creates of one name fails."""
        probe = f".commit-{uuid.uuid4().hex}.probe"
        with self._explained(probe):
            try:
                refuses = self._create(probe, b"1") and not self._create(probe, b"2")
            finally:
                self.delete(probe)
        if not refuses:
            raise EnvironmentProblem(f"a second create of one name overwrote the first at {self.url}: two writers could both commit; use a "
                                     f"newer {type(self._fs).__module__.partition('.')[0]}, or a server that supports preconditions.")
        self._tried = True

    @contextmanager
    def _beside(self, name: str) -> Iterator[str]:
        """Yield the path to write to; after the block it becomes ``name``, and after an error it is removed."""
        path = self._path(name)
        with self._explained(name):
            if self.scheme in _OBJECTS:
                yield path
                return
            folder, last = split(path)
            partial = f"{folder}/.{last}.{uuid.uuid4().hex}.part"
            self._make_folder(path)
            try:
                yield partial
                self._fs.mv(partial, path)
            except BaseException:
                with suppress(Exception):  # report the first error, not this one
                    self._fs.rm_file(partial)
                raise

    def _make_folder(self, path: str) -> None:
        if self.scheme not in _OBJECTS:  # object stores have no folders
            self._fs.makedirs(dirname(path), exist_ok=True)

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Turn errors of the file system into ours, which name the address; FileNotFoundError stays."""
        try:
            yield
        except (SparkringError, FileNotFoundError, NotADirectoryError):
            raise
        except NotImplementedError:
            raise self._cannot_be_written() from None
        except Exception as error:  # each file system has errors of its own
            said = " ".join(str(error).split()) or type(error).__name__
            raise StorageError(f"{self.url}/{name}: {said}; check the address, and that its credentials are where "
                               f"{type(self._fs).__module__.partition('.')[0]} looks for them.") from error

    def _cannot_be_written(self) -> ConfigError:
        return ConfigError(f"{self.url}: {self.scheme}: addresses are read-only; set dataset_url to storage that can be written, and copy "
                           "the files there.")


def _open(url: str, scheme: str) -> tuple[Any, str]:
    """The file system, and the path of the URL's folder in it."""
    if urlparse(url).password or "::" in url:
        raise ConfigError(f"a {scheme}: address takes neither a password nor a chain of file systems (::); put credentials where the file "
                          "system's own package looks for them.")
    if scheme not in known_implementations and scheme not in fsspec.available_protocols():
        raise ConfigError(f"fsspec does not know {scheme}: addresses{nearest(scheme, known_implementations)}; "
                          "give a path, or a URL of s3:, hdfs:, gs:, abfs: or another of fsspec's protocols.")
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        lacking = f"pip install '{_PACKAGES[scheme]}'" if scheme in _PACKAGES else str(known_implementations[scheme].get("err", error))
        raise EnvironmentProblem(f"{scheme}: addresses need a package that is not installed; install it: {lacking}.") from None
    try:
        opened: tuple[Any, str] = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=scheme != "memory")
    except Exception as error:  # each file system has errors of its own
        raise StorageError(f"{url} cannot be opened: {' '.join(str(error).split())}; check the address, and that its credentials are where "
                           "its package looks for them.") from error
    return opened


def _changed(info: dict[str, Any]) -> float:
    """Time of the last change, in seconds since 1970; now if it is unknown, so that a new file never counts as old."""
    found = next((info[key] for key in _TIMES if info.get(key)), None)
    if isinstance(found, str):
        found = datetime.fromisoformat(found)
    return found.timestamp() if isinstance(found, datetime) else float(found) if found else time.time()
