"""A store on the local file system, or on one that is mounted (NFS, a Databricks volume).

The commit is ``link(2)``: it fails if the name is taken, on every file system that has it and over NFS too. Everything
that a commit could name is flushed to the disk before, and so are the folders that lead to it, so that a power cut leaves
the old state or the new one as a killed process does.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import pyarrow as pa

from sparkring.errors import CommitConflict, ConfigError
from sparkring.pipelines.data.stores.base import Entry, require_inside, require_not_all
from sparkring.pipelines.data.stores.pieces import Pieces
from sparkring.pipelines.data.stores.writeback import begin_writeback

BITE_BYTES = 1 << 23
"""Of a large file, what is written at once."""
NO_FOLDER_HERE = {errno.EEXIST, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS}
"""What only another place, or other rights, can mend."""


class LocalStore:
    """A folder of the local file system."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.url = self.root.as_uri()

    def path(self, name: str) -> str:
        """Absolute path of ``name``, which may not lead out of the folder."""
        require_inside(name, self.url)
        return str(self.root / name) if name else str(self.root)

    def _without_way_out(self, name: str) -> str:
        """Path of ``name``; refused where a link leads out of the folder, which whoever wrote the folder may have
        laid.
        """
        path = self.path(name)
        self._require_inside(path)
        return path

    def _place_of(self, name: str) -> Path:
        """Path of ``name``, which is made, replaced or removed itself, also if it is a link; refused where a link on
        the way leads out.
        """
        path = Path(self.path(name))
        self._require_inside(path.parent if name else path)
        return path

    def _require_inside(self, path: str | Path) -> None:
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.root)):
            raise ConfigError(f"{path} is a link that leads out of {self.url}, or lies behind one; put the file itself there.")

    def open_input(self, name: str) -> pa.NativeFile:
        """Open the file. It is not mapped: a mapped file that is cut off while it is read kills the process."""
        return pa.OSFile(self._without_way_out(name))

    def read(self, name: str) -> bytes:
        """The bytes of ``name``."""
        return Path(self._without_way_out(name)).read_bytes()

    def size(self, name: str) -> int | None:
        """Bytes of the file ``name``; None if there is no such file."""
        path = Path(self._without_way_out(name))
        return path.stat().st_size if path.is_file() else None

    def names(self, folder: str) -> list[str]:
        """Names of the files directly inside ``folder``, sorted."""
        try:
            return sorted(entry.name for entry in os.scandir(self._without_way_out(folder)) if entry.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def tree(self, folder: str) -> Iterator[Entry]:
        """Everything below ``folder``; what goes away meanwhile is left out."""
        for place, folders, files in os.walk(self._without_way_out(folder)):
            for name in (*folders, *files):
                path = Path(place) / name
                with suppress(FileNotFoundError):
                    facts = path.lstat()
                    is_folder = stat.S_ISDIR(facts.st_mode)
                    yield Entry(path.relative_to(self.root).as_posix(), 0 if is_folder else facts.st_size, facts.st_mtime, is_folder)

    def check_commits(self) -> None:
        """The kernel makes a name once."""

    def put_if_absent(self, name: str, data: bytes) -> None:
        """Write beside, then link: the link fails if the name is taken, whoever took it."""
        target = self._place_of(name)
        with _beside(target) as partial:
            _write(partial, [data])
            try:
                os.link(partial, target)
            except FileExistsError:
                raise CommitConflict(
                    f"{target} was committed by another writer first; nothing was changed. Read it and try again.") from None
            self._settle(target)

    def put(self, name: str, data: bytes) -> None:
        """Write beside, then rename over."""
        self.put_pieces(name, [data])

    def put_pieces(self, name: str, pieces: Pieces) -> None:
        """Write beside, then rename over."""
        target = self._place_of(name)
        with _beside(target) as partial:
            _write(partial, pieces)
            partial.replace(target)
            self._settle(target)

    def upload(self, source: Path, name: str) -> None:
        """Copy beside, then rename over."""
        target = self._place_of(name)
        with _beside(target) as partial:
            shutil.copyfile(source, partial)
            _sync(partial)
            partial.replace(target)
            self._settle(target)

    def move(self, source: str, target: str) -> None:
        """Flush the file to the disk, then rename it."""
        old, new = self._place_of(source), self._place_of(target)
        _make_folder(new.parent)
        _sync(old)
        old.replace(new)
        self._settle(new)

    def delete(self, name: str) -> None:
        """Remove a file or folder inside this one."""
        path = self._place_of(require_not_all(name, self.url))
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def _settle(self, path: Path) -> None:
        """Make a new name durable, and those of the folders above it, which Spark may have made."""
        for folder in path.parents:
            _sync(folder)
            if folder == self.root:
                break

    @contextmanager
    def lock(self, name: str, *, busy: str, lost: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold a lock on the file ``name``; the kernel frees it however this process ends."""
        path = self._place_of(name)
        _make_folder(path.parent)
        with _opened_itself(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommitConflict(busy) from None
            yield


def _opened_itself(path: Path) -> IO[bytes]:
    """A file to lock, made if it is not there and left as it is otherwise; ConfigError where a link stands for
    another one.
    """
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "rb+")
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ConfigError(f"{path} is a link; remove it, since what it leads to is not ours to lock.") from None


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A name in ``target``'s folder for what is to become ``target``; what still has it at the end is removed."""
    _make_folder(target.parent)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def _write(path: Path, pieces: Pieces) -> None:
    """Write and flush; what is large is on its way to the disk while the rest is still written."""
    written = begun = 0
    with path.open("xb") as file:
        for piece in pieces:
            whole = memoryview(piece)
            for start in range(0, len(whole), BITE_BYTES):
                written += file.write(whole[start:start + BITE_BYTES])
                if written - begun >= BITE_BYTES:
                    begin_writeback(file.fileno(), start=begun, length=written - begun)
                    begun = written
        file.flush()
        os.fsync(file.fileno())


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, each durably."""
    missing = [path for path in (folder, *folder.parents) if not path.is_dir()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in NO_FOLDER_HERE:
            raise
        raise ConfigError(f"cannot make the folder {folder}: {error.strerror}; set a workspace that can be written to.") from None
    for path in missing:
        _sync(path.parent)


def _sync(path: Path) -> None:
    """Flush a file's bytes, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
