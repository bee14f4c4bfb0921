"""A store on the local file system, or on one that is mounted (NFS). A Databricks volume has volume.py.

The commit is ``link(2)``: it fails if the name exists, on every file system that supports it, and over NFS. Before a
commit, all files that it can name are flushed to the disk, and so are the folders above them. So after a power cut, as
after a killed process, readers find the old state or the new one.
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

from sparkring.errors import CommitConflict, ConfigError, EnvironmentProblem, StorageError
from sparkring.pipelines.data.stores.base import Entry, require_inside, require_not_all
from sparkring.pipelines.data.stores.pieces import Pieces
from sparkring.pipelines.data.stores.writeback import begin_writeback

BITE_BYTES = 1 << 23
"""Bytes of a large file that are written at once."""
NO_FOLDER_HERE = {errno.EEXIST, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS}
"""Errors that only another folder or other permissions can cure."""
NO_LINKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EMLINK}
"""Errors of link(2) where a file system has no hard links."""


class LocalStore:
    """A folder of the local file system."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.url = self.root.as_uri()

    def path(self, name: str) -> str:
        """Absolute path of ``name``, which must not lead out of the folder."""
        require_inside(name, self.url)
        return str(self.root / name) if name else str(self.root)

    def _readable_path(self, name: str) -> str:
        """Path of ``name`` to read; ConfigError if it is a link that leads out of the folder, or lies behind one.

        Anybody who may write into the folder could have placed such a link.
        """
        path = self.path(name)
        self._require_inside(path)
        return path

    def _writable_path(self, name: str) -> Path:
        """Path of ``name`` to create, replace or remove; ConfigError if it lies behind a link that leads out.

        ``name`` may be a link itself: the link is replaced or removed, not its target.
        """
        path = Path(self.path(name))
        self._require_inside(path.parent if name else path)
        return path

    def _require_inside(self, path: str | Path) -> None:
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.root)):
            raise ConfigError(f"{path} is a link that leads out of {self.url}, or lies behind one; put the file itself there.")

    def open_input(self, name: str) -> pa.NativeFile:
        """Open the file without mapping it: truncating a mapped file kills the process that reads it."""
        return pa.OSFile(self._readable_path(name))

    def read(self, name: str) -> bytes:
        """The bytes of ``name``."""
        with _reading():
            return Path(self._readable_path(name)).read_bytes()

    def size(self, name: str) -> int | None:
        """Bytes of the file ``name``; None if there is no such file."""
        path = Path(self._readable_path(name))
        with _reading():
            return path.stat().st_size if path.is_file() else None

    def names(self, folder: str) -> list[str]:
        """Names of the files directly inside ``folder``, sorted."""
        with _reading(), suppress(FileNotFoundError, NotADirectoryError):
            return sorted(entry.name for entry in os.scandir(self._readable_path(folder)) if entry.is_file())
        return []

    def tree(self, folder: str) -> Iterator[Entry]:
        """Everything below ``folder``; entries that disappear meanwhile are left out."""
        for place, folders, files in os.walk(self._readable_path(folder)):
            for name in (*folders, *files):
                path = Path(place) / name
                with suppress(FileNotFoundError):
                    facts = path.lstat()
                    is_folder = stat.S_ISDIR(facts.st_mode)
                    yield Entry(path.relative_to(self.root).as_posix(), 0 if is_folder else facts.st_size, facts.st_mtime, is_folder)

    def check_commits(self) -> None:
        """Check that a file here can get a second name, by which a commit takes its own: many mounts of cloud storage have no links.

        Raises:
            EnvironmentProblem: it cannot. Whether the folder can be written is not looked at.
        """
        folder = next(path for path in (self.root, *self.root.parents) if path.is_dir())
        probe = folder / f".{uuid.uuid4().hex}.probe"
        with suppress(OSError), _beside(probe) as partial:
            _write(partial, [])
            _link(partial, probe)
            probe.unlink()

    def put_if_absent(self, name: str, data: bytes) -> None:
        """Write to a temporary name, then link it; the link fails if the name exists."""
        target = self._writable_path(name)
        with _beside(target) as partial:
            _write(partial, [data])
            try:
                _link(partial, target)
            except FileExistsError:
                raise CommitConflict(
                    f"{target} was committed by another writer first; nothing was changed. Read it and try again.") from None
            self._settle(target)

    def put(self, name: str, data: bytes) -> None:
        """Write to a temporary name, then rename over the target."""
        self.put_pieces(name, [data])

    def put_pieces(self, name: str, pieces: Pieces) -> None:
        """Write to a temporary name, then rename over the target."""
        target = self._writable_path(name)
        with _beside(target) as partial:
            _write(partial, pieces)
            partial.replace(target)
            self._settle(target)

    def upload(self, source: Path, name: str) -> None:
        """Copy to a temporary name, then rename over the target."""
        target = self._writable_path(name)
        with _beside(target) as partial:
            shutil.copyfile(source, partial)
            _sync(partial)
            partial.replace(target)
            self._settle(target)

    def move(self, source: str, target: str) -> None:
        """Flush the file to the disk, then rename it."""
        old, new = self._writable_path(source), self._writable_path(target)
        _make_folder(new.parent)
        _sync(old)
        old.replace(new)
        self._settle(new)

    def delete(self, name: str) -> None:
        """Remove a file, or a folder with everything in it."""
        path = self._writable_path(require_not_all(name, self.url))
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def _settle(self, path: Path) -> None:
        """Make a new name durable, and the names of the folders above it, which Spark may have created."""
        for folder in path.parents:
            _sync(folder)
            if folder == self.root:
                break

    @contextmanager
    def lock(self, name: str, *, busy: str, lost: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold a lock on the file ``name``; the kernel frees it however this process ends."""
        path = self._writable_path(name)
        _make_folder(path.parent)
        with _open_lock_file(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommitConflict(busy) from None
            yield

    def is_locked(self, name: str) -> bool:
        """Whether a process holds the lock on the file ``name`` now."""
        try:
            with Path(self._readable_path(name)).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False


def _open_lock_file(path: Path) -> IO[bytes]:
    """Open the file to lock, creating it if it does not exist; ConfigError if the name is a link."""
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "rb+")
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ConfigError(f"{path} is a link; remove it, since its target is not ours to lock.") from None


@contextmanager
def _reading() -> Iterator[None]:
    """Turn a refusal of the block, which reads, into one line about the file."""
    try:
        yield
    except PermissionError as error:
        raise StorageError(f"{error.filename} cannot be read: {error.strerror}; get the right to read it.") from error  # see retry


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Yield a temporary name in ``target``'s folder; a file that still has it after the block is removed."""
    _make_folder(target.parent)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def _write(path: Path, pieces: Pieces) -> None:
    """Write and flush a file; the disk already writes the first bytes of a large one while the rest is written."""
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


def _link(path: Path, name: Path) -> None:
    """Give a file a second name; EnvironmentProblem if no file here can have two."""
    try:
        os.link(path, name)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        raise EnvironmentProblem(f"{name.parent} has no hard links ({error.strerror}), so two writers could both commit there; set "
                                 "workspace and dataset_url to a local or NFS folder, or to storage that is not mounted (s3:, gs:, abfs:, "
                                 "hdfs:, /Volumes).") from None


def _make_folder(folder: Path) -> None:
    """Create a folder and the missing ones above it, durably."""
    missing = [path for path in (folder, *folder.parents) if not path.is_dir()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in NO_FOLDER_HERE:
            raise
        raise ConfigError(f"cannot make the folder {folder}: {error.strerror}; set workspace to a folder that can be written.") from None
    for path in missing:
        _sync(path.parent)


def _sync(path: Path) -> None:
    """Flush a file's bytes, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
