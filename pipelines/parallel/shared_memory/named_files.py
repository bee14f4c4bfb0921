"""The names that a ring gives in /dev/shm: each rank's segment and listening socket, for the moment in which its peers open them.

A name lasts from its creation until all ranks of the host have opened it. A rank that is killed in between leaves the name
behind, and its memory with it. The next ring on the host removes such names (``remove_abandoned``). Only the kernel knows for
certain whether the creator still lives, so the kernel is asked, and not a process id, which may be reused or belong to another
container:

    segment    its creator holds a lock (flock) on it from before it has its final name; the lock ends with the creator
    socket     a connection of the wrong type is refused as such (EPROTOTYPE) while the socket is bound, else as ECONNREFUSED

Files of other users and files with other names are left alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import stat
import time
from contextlib import suppress
from pathlib import Path

FOLDER = Path("/dev/shm")  # noqa: S108 - the memory file system; files are O_EXCL, 0600 and randomly named
PENDING = ".pending"
PENDING_S = 60.0
"""Age from which an unlocked file without its final name is abandoned; its creator needs microseconds to lock it."""
_NAME = re.compile(rf"sparkring-[0-9a-f]{{32}}-\d+(\.socket|{re.escape(PENDING)})?")


def segment_path(token: str, rank: int) -> Path:
    """The path of a rank's segment."""
    return FOLDER / f"sparkring-{token}-{rank}"


def socket_path(token: str, rank: int) -> Path:
    """The path of a rank's listening socket."""
    return FOLDER / f"sparkring-{token}-{rank}.socket"


def paths_of(token: str) -> list[Path]:
    """The paths under which files of a launch are there now."""
    return sorted(FOLDER.glob(f"sparkring-{token}-*"))


def create_locked(path: Path, length: int) -> int | None:
    """Create a file that ``remove_abandoned`` leaves alone until its descriptor is closed or this process ends.

    Its memory is reserved at once: writing to a file that is only truncated to size would end in SIGBUS if memory runs out.

    Args:
        path: Its path, which must be free.
        length: Its bytes.
    Returns:
        The open descriptor; None if the file cannot be made.
    """
    pending = path.with_name(path.name + PENDING)
    try:
        handle = os.open(pending, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.posix_fallocate(handle, 0, length)
        os.link(pending, path)  # locked before anybody can see the final name
    except OSError:
        os.close(handle)
        return None
    finally:
        pending.unlink(missing_ok=True)
    return handle


def remove_abandoned() -> None:
    """Remove this user's names whose creators have ended; names that cannot be examined stay."""
    with suppress(OSError):
        for entry in os.scandir(FOLDER):
            if _NAME.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(path: Path) -> None:
    found = path.lstat()
    if found.st_uid != os.getuid():
        return
    if stat.S_ISSOCK(found.st_mode):
        abandoned = not _is_bound(path)
    else:
        settled = path.suffix != PENDING or time.time() - found.st_mtime > PENDING_S
        abandoned = stat.S_ISREG(found.st_mode) and settled and not _is_locked(path)
    if abandoned:
        path.unlink(missing_ok=True)


def _is_bound(path: Path) -> bool:
    """Whether a process still holds the socket at ``path``; asked without making a connection that it would have to accept."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        return probe.connect_ex(str(path)) != errno.ECONNREFUSED


def _is_locked(path: Path) -> bool:
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(handle)
