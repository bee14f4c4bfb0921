"""fsspec's WebHDFS client, hardened for commits and checked reads.

    requests      have a deadline (fsspec waits forever), and go to the next name node if one is down or on standby
    rename        forbids or allows overwriting, and raises if it did not happen (fsspec ignores the answer)
    create        uploads in one request, and never replaces a file
    reads         raise if a data node fails (fsspec returns the error page as data)
"""

from __future__ import annotations

from io import RawIOBase
from typing import Any, BinaryIO

from sparkring.errors import EnvironmentProblem, StorageError
from sparkring.pipelines.data.stores.hadoop_conf import NameNodes

try:
    import requests
    from fsspec.implementations.webhdfs import WebHDFile, WebHDFS
    from requests.adapters import HTTPAdapter
except ImportError:
    raise EnvironmentProblem("hdfs: addresses need requests, which is not installed; pip install 'sparkring[hdfs]'.") from None

CONNECT_S, READ_S = 10.0, 120.0
AHEAD_BYTES = 1 << 20
"""Bytes that a smaller read fetches at once, and that an open file keeps in memory. Arrow reads a row group column by
column, in tens of reads of some kilobytes, each of which would be two requests."""
_BINARY = {"content-type": "application/octet-stream"}


class WebHdfsClient(WebHDFS):  # type: ignore[misc]  # fsspec is published without types
    """A client of one name service; paths are absolute."""

    cachable = False  # each store has its own: fsspec's cache would share a session between forked processes

    def __init__(self, nodes: NameNodes, *, user: str) -> None:
        """Prepare a session; no connection is made yet.

        Args:
            nodes: Addresses of the name service.
            user: User name sent with requests; with Kerberos the ticket names the user.
        """
        host, _, port = nodes.web[0].rpartition(":")
        super().__init__(host, int(port), kerberos=nodes.kerberos, user=None if nodes.kerberos else user, use_https=nodes.https)
        self._bases = [f"{'https' if nodes.https else 'http'}://{address}/webhdfs/v1" for address in nodes.web]
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, _WithDeadline())

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """Rename a file in one edit of the name node's journal.

        Raises:
            RuntimeError: it did not happen: the target exists and must not be overwritten, or the source does not
                exist.
        """
        self._call("RENAME", "put", path=source, destination=target, renameoptions="OVERWRITE" if overwrite else "NONE")

    def create(self, path: str, data: bytes | BinaryIO | RawIOBase) -> None:
        """Write a new file, and create the folders above it.

        Raises:
            RuntimeError: it exists already, this user may not write it, or no data node accepts it.
        """
        asked = self._call("CREATE", "put", path=path, redirect=False, overwrite="false")
        answer = self.session.put(self._apply_proxy(asked.headers["Location"]), data=data, headers=_BINARY)
        if not answer.ok:
            raise RuntimeError(_reason(answer))

    def content(self, path: str) -> bytes:
        """All bytes of a file."""
        data: bytes = self._call("OPEN", path=path).content
        return data

    def open_ranges(self, path: str) -> BinaryIO:
        """Open a file for ranged reads; each takes bytes that were read ahead, or makes one request."""
        opened: BinaryIO = _Ranges(self, path, mode="rb", cache_type="readahead", block_size=AHEAD_BYTES, tempdir=self.tempdir,
                                   autocommit=True)
        return opened

    def _call(self, op: str, method: str = "get", path: str | None = None, data: Any = None,
              redirect: bool = True, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002 - fsspec's own signature
        """Make one request, and repeat it at the next name node if this one is down or on standby."""
        for left in reversed(range(len(self._bases))):
            self.url = self._bases[0]
            try:
                return super()._call(op, method, path=path, data=data, redirect=redirect, **kwargs)
            except (requests.ConnectionError, requests.Timeout, RuntimeError) as error:
                standby = isinstance(error, requests.RequestException) or "state standby" in str(error)
                if not (standby and left):
                    raise
                self._bases.append(self._bases.pop(0))
        raise AssertionError("the last attempt returns or raises")


def _reason(answer: requests.Response) -> str:
    """The reason that a data node gives for an error."""
    try:
        return str(answer.json()["RemoteException"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code} {answer.reason}"


class _Ranges(WebHDFile):  # type: ignore[misc]
    """An open file; each read must return all the bytes it asked for."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        start, end = max(start, 0), min(end, self.size)
        if start >= end:
            return b""
        data: bytes = self.fs._call("OPEN", path=self.path, offset=start, length=end - start).content  # noqa: SLF001 - as its base class does
        if len(data) != end - start:
            raise StorageError(f"{self.path}: a data node sent {len(data)} of the {end - start} bytes from {start} on; try again.")
        return data


class _WithDeadline(HTTPAdapter):
    """Sets a deadline for every request that has none of its own."""

    def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Send a request."""
        kwargs["timeout"] = kwargs.get("timeout") or (CONNECT_S, READ_S)
        return super().send(request, *args, **kwargs)
