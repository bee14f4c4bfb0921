"""Asking storage again: a server that answers 503, or a name node that starts anew, is back a moment later.

``StorageError`` is what a store says that does not answer, or refuses; that alone is worth another try. What is not there, a full disk
and a damaged file are told at once. Arrow, which reads data files, has one error for bytes that do not come and for bytes that make no
sense; ``read_patiently`` tells them apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sparkring.errors import StorageError

PATIENCE_S = 60.0
"""Seconds for storage to come back. The stores' own clients have tried a few times before they say that it is away."""
FIRST_S, LONGEST_S = 0.25, 5.0
"""Seconds before the second try; each pause is twice the one before, up to the longest."""
T = TypeVar("T")


def patiently(ask: Callable[[], T], *, within_s: float = PATIENCE_S) -> T:
    """Ask until storage answers.

    Args:
        ask: The question; may be asked several times.
        within_s: Seconds from now in which another try may begin.
    Raises:
        StorageError: the last one, where storage stays away.
    """
    until, pause_s = time.monotonic() + within_s, FIRST_S
    while True:
        try:
            return ask()
        except StorageError:
            if time.monotonic() + pause_s > until:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_S)


def read_patiently(read: Callable[[], T], *, within_s: float = PATIENCE_S) -> T:
    """Read a data file, again where storage did not answer.

    Args:
        read: Opens and reads; may be called several times.
        within_s: Seconds from now in which another try may begin.
    Raises:
        StorageError: storage stays away.
        OSError: what ``read`` said of bytes that did come, or of a file that is not there.
    """
    def ask() -> T:
        try:
            return read()
        except OSError as error:
            if isinstance(error, StorageError) or not _is_away(error):
                raise
            raise StorageError(str(error)) from error

    return patiently(ask, within_s=within_s)


def _is_away(error: OSError) -> bool:
    """Whether it is of a connection or of a server: Arrow's client of S3 says so in words, the client of WebHDFS is made of requests."""
    by_kind = isinstance(error, ConnectionError | TimeoutError) or type(error).__module__.startswith("requests")
    return by_kind or "AWS Error" in str(error)
