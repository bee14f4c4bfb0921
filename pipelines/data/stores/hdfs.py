"""A store in HDFS, over WebHDFS: plain HTTP, so a rank needs neither Java nor libhdfs.

The commit is a rename. The document is written to a temporary name, and the name node renames it with overwriting
forbidden. The name node holds its one namespace lock and writes one edit of its journal, so the name appears with the
whole document, and the second of two writers fails. A create under the final name would also let only one writer win,
but would show an empty file until the bytes arrive, and forever if the writer dies.

Source: https://hadoop.apache.org/docs/r3.4.1/hadoop-project-dist/hadoop-hdfs/WebHDFS.html, and rename in
https://hadoop.apache.org/docs/r3.4.1/hadoop-project-dist/hadoop-common/filesystem/filesystem.html
"""

from __future__ import annotations

import getpass
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from io import RawIOBase
from pathlib import Path
from posixpath import dirname, split
from typing import BinaryIO

import pyarrow as pa
import requests

from sparkring.errors import CommitConflict, ConfigError, SparkringError, StorageError
from sparkring.pipelines.data.stores.base import Entry, require_inside, require_not_all
from sparkring.pipelines.data.stores.hadoop_conf import name_nodes, read_hadoop_conf
from sparkring.pipelines.data.stores.lease import is_leased, lease
from sparkring.pipelines.data.stores.pieces import Pieces, PiecesFile
from sparkring.pipelines.data.stores.webhdfs import WebHdfsClient


class HdfsStore:
    """A folder of HDFS."""

    def __init__(self, url: str) -> None:
        authority, _, path = url.removeprefix("hdfs://").partition("/")
        if not url.startswith("hdfs://") or not path.strip("/"):
            raise ConfigError(f"{url} is no address on HDFS; give hdfs://host:port/path, or hdfs:///path for the default file system.")
        nodes = name_nodes(authority, read_hadoop_conf())
        self.root = f"/{path.strip('/')}"
        self.url = f"hdfs://{nodes.authority}{self.root}"
        self._client = WebHdfsClient(nodes, user=os.environ.get("HADOOP_USER_NAME") or getpass.getuser())

    def path(self, name: str) -> str:
        """``hdfs://host:port/path/name``."""
        return f"{self.url}/{require_inside(name, self.url)}".rstrip("/")

    def open_input(self, name: str) -> pa.NativeFile:
        """Open the file; small reads of neighbouring bytes share a request to a data node."""
        with self._explained(name):
            return pa.PythonFile(self._client.open_ranges(self._path(name)), mode="r")

    def read(self, name: str) -> bytes:
        """The bytes of ``name``."""
        with self._explained(name):
            return self._client.content(self._path(name))

    def size(self, name: str) -> int | None:
        """Bytes of the file ``name``; None if there is no such file."""
        try:
            with self._explained(name):
                info = self._client.info(self._path(name))
        except FileNotFoundError:
            return None
        return int(info["size"]) if info["type"] == "file" else None

    def names(self, folder: str) -> list[str]:
        """Names of the files directly inside ``folder``, sorted."""
        try:
            with self._explained(folder):
                entries = self._client.ls(self._path(folder), detail=True)
        except FileNotFoundError:
            return []
        return sorted(entry["pathSuffix"] for entry in entries if entry["type"] == "file" and entry["pathSuffix"])

    def tree(self, folder: str) -> Iterator[Entry]:
        """Everything below ``folder``, by one request for each folder."""
        try:
            with self._explained(folder):
                entries = self._client.ls(self._path(folder), detail=True)
        except FileNotFoundError:
            return
        for entry in entries:
            name, is_folder = f"{folder}/{entry['pathSuffix']}".strip("/"), entry["type"] == "directory"
            yield Entry(name, int(entry["size"]), entry["modificationTime"] / 1000, is_folder)
            if is_folder:
                yield from self.tree(name)

    def check_commits(self) -> None:
        """Nothing to check: the name node renames under one lock."""

    def put_if_absent(self, name: str, data: bytes) -> None:
        """Write to a temporary name, then rename with overwriting forbidden."""
        target = self._path(name)
        with self._beside(name, data) as partial:
            try:
                self._client.rename(partial, target, overwrite=False)
            except (RuntimeError, requests.RequestException):
                # The name is taken, or the rename was done and its answer was lost. Only a rename removes the partial file.
                if self._exists(partial):
                    if self._exists(target):
                        raise CommitConflict(f"{self.path(name)} was committed by another writer first; nothing was changed. "
                                             "Read it and try again.") from None
                    raise

    def put(self, name: str, data: bytes) -> None:
        """Write to a temporary name, then rename over the target."""
        with self._beside(name, data) as partial:
            self._client.rename(partial, self._path(name), overwrite=True)

    def put_pieces(self, name: str, pieces: Pieces) -> None:
        """Write to a temporary name, then rename over the target."""
        with self._beside(name, PiecesFile(pieces)) as partial:
            self._client.rename(partial, self._path(name), overwrite=True)

    def upload(self, source: Path, name: str) -> None:
        """Copy to a temporary name, then rename over the target."""
        with source.open("rb") as file, self._beside(name, file) as partial:
            self._client.rename(partial, self._path(name), overwrite=True)

    def move(self, source: str, target: str) -> None:
        """Rename over the target; a closed file of HDFS is on its data nodes already."""
        with self._explained(source):
            self._client.mkdir(dirname(self._path(target)))
            self._client.rename(self._path(source), self._path(target), overwrite=True)

    def delete(self, name: str) -> None:
        """Remove a file, or a folder with everything in it."""
        with self._explained(name):
            self._client.rm(self._path(require_not_all(name, self.url)), recursive=True)

    def lock(self, name: str, *, busy: str, lost: Callable[[], None] = lambda: None) -> AbstractContextManager[None]:
        """Hold a lease, since WebHDFS has no lock that a dying process frees."""
        return lease(self, name, busy=busy, lost=lost)

    def is_locked(self, name: str) -> bool:
        """Whether a process renews the lease ``name``."""
        return is_leased(self, name)

    def _exists(self, path: str) -> bool:
        try:
            self._client.info(path)
        except FileNotFoundError:
            return False
        return True

    def _path(self, name: str) -> str:
        return f"{self.root}/{require_inside(name, self.url)}".rstrip("/")

    @contextmanager
    def _beside(self, name: str, data: bytes | BinaryIO | RawIOBase) -> Iterator[str]:
        """Write ``data`` to a temporary name in the same folder, and yield that name for the block to rename.

        After an error the temporary file is removed.
        """
        folder, last = split(self._path(name))
        partial = f"{folder}/.{last}.{uuid.uuid4().hex}.part"
        with self._explained(name):
            try:
                self._client.create(partial, data)
                yield partial
            except BaseException:
                with suppress(OSError, RuntimeError):  # report the first error, not this one
                    self._client.rm(partial)
                raise

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Turn errors of the client into ours, which name the address; FileNotFoundError stays."""
        try:
            yield
        except SparkringError:
            raise
        except (RuntimeError, ValueError, PermissionError, requests.RequestException) as error:
            said = str(error).partition("\n")[0] or type(error).__name__
            raise StorageError(f"{self.url}/{name}: {said}; check that the cluster is up, that HADOOP_CONF_DIR holds "
                               "its configuration (dfs.namenode.http-address), and that this user may write there.") from error
