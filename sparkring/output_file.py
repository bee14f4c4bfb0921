"""A file on this machine that a command writes at its end, looked at before the work. Standard library alone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from sparkring.errors import ConfigError


def require_writable_file(file: Path) -> None:
    """Make the folder of a file on this machine, and check that the file can be written.

    Raises:
        ConfigError: it cannot.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            file.touch()
            file.unlink()
        elif file.is_dir() or not os.access(file, os.W_OK):
            raise PermissionError(errno.EACCES, "it is a folder" if file.is_dir() else os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}; name a file in a folder that can be written.") from None
