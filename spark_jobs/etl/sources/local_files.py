"""The files below a local folder, also those behind links to folders, which Spark follows too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sparkring.errors import SourceError


def files_below(folder: Path, *, skipped: Callable[[str], bool], _above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """Everything below a folder but folders: in each folder first its own files, by name, then those of its folders.

    Args:
        folder: Where to look.
        skipped: Whether files and folders of a name are left out.
        _above: The folders on the way there.
    Raises:
        SourceError: a folder cannot be listed, or lies inside itself by a link.
    """
    here = os.path.realpath(folder)
    if here in _above:
        raise SourceError(f"{folder} links to a folder that it lies in, so its files have no end; remove the link.")
    with reading(), os.scandir(folder) as entries:
        found = sorted((entry.name, entry.is_dir()) for entry in entries if not skipped(entry.name))
    yield from (folder / name for name, is_folder in found if not is_folder)
    for name, is_folder in found:
        if is_folder:
            yield from files_below(folder / name, skipped=skipped, _above=_above | {here})


def is_there(path: Path) -> bool:
    """Whether a file or folder is there; unlike ``Path.exists``, which since Python 3.14 says no, raises where the system refuses to look.

    Raises:
        OSError: no permission for a folder on the way, a name too long, links in a circle.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a name with a null byte
        return False
    return True


@contextmanager
def reading() -> Iterator[None]:
    """Turn the operating system's errors of the block, which looks at files of a source, into one line about the file."""
    try:
        yield
    except OSError as error:
        raise SourceError(f"{error.filename} cannot be read: {error.strerror}; check that it is there and that you may read it.") from None
