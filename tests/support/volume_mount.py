"""A Unity Catalog volume on this machine: a real FUSE mount that knows what a volume's mount knows, and no more.

    with volume_mount(folder) as path: ...      path is /Volumes/<catalog>/default/tests; its files lie in <folder>/files

    rename, link, symbolic links, locks         ENOSYS (of link, newer kernels make EPERM)
    append, write in the middle, open to read and write             EOPNOTSUPP
    a new file or a new content                 is in <folder>/files once its writer has closed it, or was killed: then with what it had
                                                written so far

Files come and go in <folder>/files behind the mount's back too, as they do by the Files API (files_api.py). Needs root (for the mount
and for /Volumes) and libfuse; ``lacking`` says what is missing.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tests.support.daemons import daemon

ROOT = Path(__file__).resolve().parents[2]
VOLUMES = Path("/Volumes")
TIMES = ("st_atime", "st_mtime", "st_ctime")


def lacking() -> str | None:
    """Why no volume can be mounted here; None if one can."""
    if os.geteuid() != 0:
        return "needs root, to mount below /Volumes"
    if not Path("/dev/fuse").exists():
        return "needs /dev/fuse"
    try:
        import mfusepy  # noqa: F401 (it looks for the library)
    except (ImportError, OSError) as error:
        return f"needs libfuse (Debian, Ubuntu: apt-get install fuse3): {error}"
    return None


@contextmanager
def volume_mount(folder: Path) -> Iterator[Path]:
    """Mount an empty volume for the length of the block."""
    files, catalog = folder / "files", VOLUMES / f"sparkring_tests_{uuid.uuid4().hex[:12]}"
    files.mkdir(parents=True)
    path = catalog / "default" / "tests"
    made = [place for place in (path, *path.parents) if not place.exists()]
    path.mkdir(parents=True)
    try:
        with daemon([sys.executable, "-m", "tests.support.volume_mount", files, path], log=folder / "mount.log",
                    environment={"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}) as mount:
            mount.until(lambda: os.path.ismount(path) or None, what="mount")
            yield path
    finally:
        if os.path.ismount(path):
            subprocess.run(["umount", "--lazy", str(path)], check=False)
        for place in made:
            with suppress(OSError):  # another test's volume
                place.rmdir()


@dataclass
class Writing:
    """An open file that is being written."""

    path: str
    file: BinaryIO
    """Nameless, on this machine's disk."""
    size: int = 0
    emptied: bool = False
    """It began as a new file, or its old content was truncated away."""
    shown: bool = False
    """What was written so far is in the volume."""


class Volume:
    """The operations of libfuse, on a folder. What is not here is ENOSYS to whoever calls it: rename, link, symlink."""

    use_ns = True

    def __init__(self, files: Path) -> None:
        self._files, self._spool = files, files.parent / "incoming"
        self._spool.mkdir(exist_ok=True)
        self._writing: dict[int, Writing] = {}
        self._next = 1

    def getattr(self, path: str, handle: int | None = None) -> dict[str, Any]:
        """Of the file in the volume, or of one that is being written for the first time."""
        try:
            facts = os.lstat(self._of(path))
        except FileNotFoundError:
            opened = next((one for one in self._writing.values() if one.path == path), None)
            if opened is None:
                raise
            facts = os.fstat(opened.file.fileno())
        found = {key: getattr(facts, key) for key in ("st_mode", "st_size", "st_uid", "st_gid")} | {"st_nlink": 1}
        return found | {key: getattr(facts, f"{key}_ns") for key in TIMES}

    def readdir(self, path: str, handle: int) -> list[str]:
        """What is in the volume; a file that is being written for the first time is not."""
        return [".", "..", *(entry.name for entry in self._of(path).iterdir())]

    def mkdir(self, path: str, mode: int) -> None:
        self._of(path).mkdir()

    def rmdir(self, path: str) -> None:
        self._of(path).rmdir()

    def unlink(self, path: str) -> None:
        self._of(path).unlink()

    def statfs(self, path: str) -> dict[str, int]:
        facts = os.statvfs(self._files)
        return {key: getattr(facts, key) for key in ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_files", "f_ffree", "f_frsize")}

    def open(self, path: str, flags: int) -> int:
        """To read, or to write from the beginning."""
        if flags & os.O_ACCMODE == os.O_RDONLY:
            return 0
        self._of(path).stat()
        return self._begin(path, flags, emptied=bool(flags & os.O_TRUNC))

    def create(self, path: str, mode: int, flags: int) -> int:
        """A new file."""
        self._of(path).parent.stat()
        return self._begin(path, flags, emptied=True)

    def read(self, path: str, size: int, offset: int, handle: int) -> bytes:
        with self._of(path).open("rb") as file:
            return os.pread(file.fileno(), size, offset)

    def write(self, path: str, data: bytes, offset: int, handle: int) -> int:
        """The next bytes, and no others."""
        opened = self._writing[handle]
        if not opened.emptied or offset != opened.size:
            raise OSError(errno.EOPNOTSUPP, "only from the beginning to the end")
        opened.file.write(data)
        opened.size, opened.shown = opened.size + len(data), False
        return len(data)

    def truncate(self, path: str, length: int, handle: int | None = None) -> None:
        """Nothing but emptying a file that is open to be written: the second half of opening it."""
        opened = next((one for one in reversed(self._writing.values()) if one.path == path), None)
        if length or opened is None or opened.size:
            raise OSError(errno.EOPNOTSUPP, "a file is written anew, not cut")
        opened.emptied, opened.shown = True, False

    def flush(self, path: str, handle: int) -> None:
        """A descriptor is closed, by its process or because that was killed: what was written appears."""
        opened = self._writing.get(handle)
        if opened is None or opened.shown or not opened.emptied:
            return
        opened.file.flush()
        place = self._spool / uuid.uuid4().hex
        with Path(f"/proc/self/fd/{opened.file.fileno()}").open("rb") as written, place.open("xb") as copy:
            shutil.copyfileobj(written, copy)
        place.replace(self._of(path))
        opened.shown = True

    def release(self, path: str, handle: int) -> None:
        opened = self._writing.pop(handle, None)
        if opened is not None:
            opened.file.close()

    def chmod(self, path: str, mode: int) -> None:
        """Accepted, and ignored; as are the other two."""

    def chown(self, path: str, uid: int, gid: int) -> None: ...

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> None: ...

    def lock(self, path: str, handle: int, command: int, lock: object) -> None:
        raise OSError(errno.ENOSYS, "no locks")

    def flock(self, path: str, handle: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "no locks")

    def _begin(self, path: str, flags: int, *, emptied: bool) -> int:
        if flags & os.O_APPEND or flags & os.O_ACCMODE == os.O_RDWR:
            raise OSError(errno.EOPNOTSUPP, "neither append nor both ways")
        self._next += 1
        self._writing[self._next] = Writing(path, tempfile.TemporaryFile(dir=self._spool), emptied=emptied)  # noqa: SIM115 (release closes)
        return self._next

    def _of(self, path: str) -> Path:
        return self._files / path.lstrip("/")


if __name__ == "__main__":
    from mfusepy import FUSE

    # hard_remove: libfuse would rename an open file that is removed, and there is no rename.
    FUSE(Volume(Path(sys.argv[1])), sys.argv[2], foreground=True, nothreads=True, hard_remove=True, fsname="volume")
