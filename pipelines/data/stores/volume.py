"""A store in a Unity Catalog volume of Databricks: files through its mount, commits through the Files API.

    /Volumes/<catalog>/<schema>/<volume>/<folder>      the same address for Spark, for Python and for the API

The mount (FUSE) writes a file from its beginning to its end, and shows it once it is closed. It has no rename, link or
lock, and cannot append or write in the middle. So each operation has another way:

    operation                          way                                    left by a writer that is killed in it
    put, put_pieces, upload            write under the final name             perhaps a part of the file, under that name
    move                               copy, then delete                      the source, and perhaps a part of the target
    put_if_absent                      Files API: PUT with overwrite=false    nothing, or all of it
    lock                               a lease (lease.py), by the Files API

The API needs a token, which the driver has and a rank may lack; so ranks do without ``put_if_absent``. A part of a file
passes for a whole one nowhere: data files and the parts of checkpoints count only where a document names their hash, a
document that was cut off is no JSON, and a rank writes each segment of its events once (training/events/lines.py).

Source: https://docs.databricks.com/aws/en/volumes/volume-files (limitations) and
https://docs.databricks.com/api/workspace/files/upload
"""

from __future__ import annotations

import io
import re
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from sparkring.errors import CommitConflict, ConfigError, EnvironmentProblem, StorageError
from sparkring.pipelines.data.stores.base import Entry, require_inside
from sparkring.pipelines.data.stores.lease import is_leased, lease
from sparkring.pipelines.data.stores.local import BITE_BYTES, LocalStore
from sparkring.pipelines.data.stores.pieces import Pieces

ANSWER_S, ATTEMPTS = 30, 5
"""Seconds to wait for the Files API's answer, and requests that are made until there is one."""
SHOWN_S = 10.0
"""Seconds for the mount to show what the Files API wrote."""
T = TypeVar("T")
_VOLUME = re.compile(r"/Volumes/[^/]+/[^/]+/[^/]+")


def is_volume(path: Path | str) -> bool:
    """Whether a path lies in a volume. On a Mac, /Volumes holds disks."""
    return sys.platform == "linux" and str(path).startswith("/Volumes/")


class VolumeStore:
    """A folder of a volume."""

    def __init__(self, path: str) -> None:
        """Open the folder at ``path``; ConfigError if the path names no volume, or leads out of it."""
        found = _VOLUME.match(path)
        if found is None:
            raise ConfigError(f"{path} names no volume; give /Volumes/<catalog>/<schema>/<volume>, and a folder in it.")
        self.url = path.rstrip("/")
        require_inside(self.url.removeprefix("/"), found.group())
        self._volume, self._mounted = Path(found.group()), LocalStore(Path(self.url))
        self._commits = False

    def path(self, name: str) -> str:
        """``/Volumes/.../name``, which Spark on Databricks takes as it is."""
        return self._mounted.path(name)

    def open_input(self, name: str) -> pa.NativeFile:
        """Open the file in the mount."""
        return self._mounted.open_input(name)

    def read(self, name: str) -> bytes:
        """The bytes of ``name``."""
        return self._mounted.read(name)

    def size(self, name: str) -> int | None:
        """Bytes of the file ``name``; None if there is no such file."""
        return self._mounted.size(name)

    def names(self, folder: str) -> list[str]:
        """Names of the files directly inside ``folder``, sorted."""
        return self._mounted.names(folder)

    def tree(self, folder: str) -> Iterator[Entry]:
        """Everything below ``folder``; entries that disappear meanwhile are left out."""
        return self._mounted.tree(folder)

    def delete(self, name: str) -> None:
        """Remove a file, or a folder with everything in it."""
        self._mounted.delete(name)

    def check_commits(self) -> None:
        """Check, on a document of its own, that the Files API refuses a second writer and writes where the mount reads.

        Raises:
            ConfigError: the volume is not mounted here.
            EnvironmentProblem: there is no client or no token, or they lead elsewhere.
        """
        if self._commits:
            return
        self._require_mounted()
        api = self._api
        self._make_folder(Path(self.url))
        probe, found = f".{uuid.uuid4().hex}.probe", None
        try:
            with suppress(FileNotFoundError):  # in the token's workspace there is no such volume
                api.put_if_absent(probe, b"1")
                with suppress(CommitConflict):
                    api.put_if_absent(probe, b"2")
                found = self.read(probe) if self._is_shown(probe) else None
        finally:
            api.delete(probe)
        if found is None:
            raise EnvironmentProblem(f"the Files API of {api.host} does not write into {self.url} as it is mounted here; set "
                                     "DATABRICKS_HOST and DATABRICKS_TOKEN for the workspace of this cluster.")
        if found != b"1":
            raise EnvironmentProblem(f"the Files API of {api.host} ignores overwrite=false: two writers could both commit; set "
                                     "dataset_url and workspace to other storage.")
        self._commits = True

    def put_if_absent(self, name: str, data: bytes) -> None:
        """One PUT of the Files API that must not overwrite. Once it is done, or was done by another, the mount shows the document.

        Raises:
            CommitConflict: there is one already.
            StorageError: the document is written, and the mount does not show it.
        """
        self.check_commits()
        try:
            self._api.put_if_absent(name, data)
        except CommitConflict:
            self._is_shown(name)
            raise
        if not self._is_shown(name):
            raise StorageError(f"{self.url}/{name} is written, but the mount has not shown it for {SHOWN_S:g} s; run the same command "
                               "again.")

    def _is_shown(self, name: str) -> bool:
        """Whether the mount shows a document of the Files API; waits for it, at most ``SHOWN_S``."""
        until = time.monotonic() + SHOWN_S
        while self.size(name) is None:
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def put(self, name: str, data: bytes) -> None:
        """Write under the final name; readers see it once it is complete."""
        self.put_pieces(name, [data])

    def put_pieces(self, name: str, pieces: Pieces) -> None:
        """Write under the final name, from the first byte to the last."""
        with self._new(name) as file:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[file.write(rest[:BITE_BYTES]):]

    def upload(self, source: Path, name: str) -> None:
        """Copy to the final name."""
        with source.open("rb") as old, self._new(name) as new:
            shutil.copyfileobj(old, new, BITE_BYTES)

    def move(self, source: str, target: str) -> None:
        """Copy, then delete; all bytes pass through this process."""
        self.upload(Path(self.path(source)), target)
        self.delete(source)

    def lock(self, name: str, *, busy: str, lost: Callable[[], None] = lambda: None) -> AbstractContextManager[None]:
        """Hold a lease, since a volume has no locks. It never touches the mount, which may show a document late."""
        self.check_commits()
        return lease(self._api, name, busy=busy, lost=lost)

    def is_locked(self, name: str) -> bool:
        """Whether a process renews the lease ``name``, by what the mount shows: looking needs no token."""
        return is_leased(self, name)

    @cached_property
    def _api(self) -> FilesApi:
        return FilesApi(self.url)

    @contextmanager
    def _new(self, name: str) -> Iterator[io.FileIO]:
        """Yield an empty file to write; it is stored when it is closed, at the block's end."""
        path = Path(self.path(name))
        self._make_folder(path.parent)
        with path.open("wb", buffering=0) as file:
            yield file

    def _make_folder(self, folder: Path) -> None:
        """Create a folder of the volume and the missing ones above it."""
        if not folder.is_dir():
            self._require_mounted()
            folder.mkdir(parents=True, exist_ok=True)

    def _require_mounted(self) -> None:
        """Check that there is the volume; a missing one would be created, on this machine's disk."""
        if not self._volume.is_dir():
            raise ConfigError(f"{self._volume} is not mounted here; check its name, and run this on a Databricks cluster that may use it.")


class FilesApi:
    """Documents below a folder of a volume, through Databricks' Files API: each request is atomic, on a whole file."""

    def __init__(self, folder: str) -> None:
        """Make a client from what Databricks' own tools look for (environment, ``~/.databrickscfg``, the notebook's user).

        Raises:
            EnvironmentProblem: there is no databricks-sdk, or no token.
        """
        self._folder = folder
        try:
            from databricks.sdk import WorkspaceClient
            from databricks.sdk.core import Config
            from databricks.sdk.errors import NotFound, ResourceConflict
        except ImportError:
            raise EnvironmentProblem(f"{folder}: a commit in a volume needs databricks-sdk, which is not installed; "
                                     "pip install 'sparkring[volumes]'.") from None
        self._missing, self._taken = NotFound, ResourceConflict
        try:
            # One second ends the client's own attempts after the first: in a second one, releases of 2024 send an empty body
            # (databricks-sdk-py#796), and runtimes bring those.
            config = Config(http_timeout_seconds=ANSWER_S, retry_timeout_seconds=1)
            self._files: Any = WorkspaceClient(config=config).files
        except ValueError:  # its text repeats the settings that it found
            raise EnvironmentProblem(f"{folder}: a commit in a volume needs a token for the Files API, and there is none; run this in a "
                                     "notebook or job of Databricks, or set DATABRICKS_HOST and DATABRICKS_TOKEN.") from None
        self.host = str(config.host)

    def read(self, name: str) -> bytes:
        """The bytes of ``name``."""
        path = self._path(name)
        return self._ask(name, lambda: bytes(self._files.download(path).contents.read()))

    def names(self, folder: str) -> list[str]:
        """Names of the files directly inside ``folder``, sorted."""
        path = self._path(folder)
        with suppress(FileNotFoundError):
            found = self._ask(folder, lambda: list(self._files.list_directory_contents(path)))
            return sorted(entry.name for entry in found if not entry.is_directory)
        return []

    def put_if_absent(self, name: str, data: bytes) -> None:
        """One PUT with ``overwrite=false``.

        A PUT whose answer was lost is repeated, and then finds its own document. Documents of two writers differ (each
        holds something drawn at random), so an equal one is this writer's; where it is not, both wrote the same.
        """
        try:
            self._put(name, data, overwrite=False)
        except CommitConflict:
            with suppress(FileNotFoundError):
                if self.read(name) == data:
                    return
            raise

    def put(self, name: str, data: bytes) -> None:
        """One PUT: readers see the old document or the new one."""
        self._put(name, data, overwrite=True)

    def delete(self, name: str) -> None:
        """Remove a file; does nothing if it does not exist."""
        path = self._path(name)
        with suppress(FileNotFoundError):
            self._ask(name, lambda: self._files.delete(path))

    def _put(self, name: str, data: bytes, *, overwrite: bool) -> None:
        path = self._path(name)
        self._ask(name, lambda: self._files.create_directory(path.rpartition("/")[0]))
        self._ask(name, lambda: self._files.upload(path, io.BytesIO(data), overwrite=overwrite))

    def _path(self, name: str) -> str:
        return f"{self._folder}/{require_inside(name, self._folder)}".rstrip("/")

    def _ask(self, name: str, request: Callable[[], T]) -> T:
        """Make a request, and repeat it while it is not answered; errors of the client become ours, which name the address."""
        for left in reversed(range(ATTEMPTS)):
            try:
                return request()
            except self._missing:
                raise FileNotFoundError(f"{self._folder}/{name} does not exist") from None
            except self._taken:
                raise CommitConflict(f"{self._folder}/{name} was committed by another writer first; nothing was changed. Read it and "
                                     "try again.") from None
            except (OSError, ValueError) as error:  # the client's own errors are OSErrors
                if left and isinstance(error, TimeoutError):  # it has paused for a second
                    continue
                said = " ".join(str(error.__cause__ or error).split()) or type(error).__name__
                raise StorageError(f"{self._folder}/{name}: {said}; check that {self.host} can be reached, and that its token may write "
                                   "this volume.") from error
        raise AssertionError("the last attempt returns or raises")
