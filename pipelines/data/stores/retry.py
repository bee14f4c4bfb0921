"""Retrying storage: a server that answers 503, or a name node that restarts, is back a moment later.

A store raises ``StorageError`` if it does not answer or refuses; only that error is worth another try. A missing file,
a full disk or a damaged file is raised at once. Arrow, which reads data files, raises one error both for bytes that do
not arrive and for damaged bytes; ``retry_read`` distinguishes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sparkring.errors import StorageError

RETRY_FOR_S = 60.0
"""Seconds for storage to come back. The stores' own clients have retried a few times before they raise an error."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 5.0
"""Seconds before the second try; each pause is twice the one before, up to the longest."""
T = TypeVar("T")


def retry(ask: Callable[[], T], *, for_s: float = RETRY_FOR_S) -> T:
    """Repeat a request until storage answers.

    Args:
        ask: The request; may be called several times.
        for_s: Seconds from now in which another try may begin.
    Raises:
        StorageError: the last one, if storage stays unavailable.
    """
    until, pause_s = time.monotonic() + for_s, FIRST_PAUSE_S
    while True:
        try:
            return ask()
        except StorageError as error:
            refused = isinstance(error.__cause__, PermissionError)  # nothing that passes
            if refused or time.monotonic() + pause_s > until:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def retry_read(read: Callable[[], T], *, for_s: float = RETRY_FOR_S) -> T:
    """Read a data file, and repeat the read if storage did not answer.

    Args:
        read: Opens and reads; may be called several times.
        for_s: Seconds from now in which another try may begin.
    Raises:
        StorageError: storage stays unavailable.
        OSError: ``read`` failed on bytes that did arrive, or the file is missing.
    """
    def ask() -> T:
        try:
            return read()
        except OSError as error:
            if isinstance(error, StorageError) or not _is_unavailable(error):
                raise
            raise StorageError(str(error)) from error

    return retry(ask, for_s=for_s)


def _is_unavailable(error: OSError) -> bool:
    """Whether a connection or a server failed. Arrow's S3 client says so only in the text; WebHDFS raises errors of
    requests.
    """
    by_kind = isinstance(error, ConnectionError | TimeoutError) or type(error).__module__.startswith("requests")
    return by_kind or "AWS Error" in str(error)
