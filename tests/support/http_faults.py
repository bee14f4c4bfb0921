"""A connection that dies at the n-th request which changes something: for stores that are spoken to over HTTP.

    with HttpFaults() as seen: commit()                          seen.acts == ["PUT", "PUT", "DELETE", ...]
    with HttpFaults(at=3, done=False): commit()                  the 4th such request and all after it are not sent
    with HttpFaults(at=3, done=True): commit()                   the 4th is done, its answer lost, and no other is sent

To the server that is what a client looks like which was killed there. boto3 and requests both send through urllib3.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self
from unittest.mock import patch

from urllib3.connectionpool import HTTPConnectionPool

CHANGING = {"PUT", "POST", "DELETE"}


class Died(OSError):
    """No request is sent any more."""


class HttpFaults:
    """Counts changing requests while it is entered, and dies at one of them."""

    def __init__(self, *, at: int | None = None, done: bool = False) -> None:
        self.acts: list[str] = []
        """Methods of the requests, in order."""
        self._at, self._done = at, done
        self._send = HTTPConnectionPool.urlopen

    @property
    def struck(self) -> bool:
        """The fault has happened."""
        return self._at is not None and len(self.acts) > self._at

    def __enter__(self) -> Self:
        def urlopen(pool: HTTPConnectionPool, method: str, *args: Any, **kwargs: Any) -> Any:
            if method in CHANGING:
                self._count(pool, method, *args, **kwargs)
            return self._send(pool, method, *args, **kwargs)

        self._patch = patch.object(HTTPConnectionPool, "urlopen", urlopen)
        self._patch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._patch.stop()

    def _count(self, pool: HTTPConnectionPool, method: str, *args: Any, **kwargs: Any) -> None:
        number = len(self.acts)
        self.acts.append(method)
        if self._at is None or number < self._at:
            return
        if number == self._at and self._done:
            self._send(pool, method, *args, **kwargs)
        raise Died(f"injected at request {number} ({method})")
