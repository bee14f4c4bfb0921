"""fsspec's WebHDFS client, made exact where a commit and a checked read depend on it.

What it adds: a deadline for every request (fsspec waits for ever), a rename that says whether it may overwrite and raises
where it did not happen (fsspec drops the answer), an error where a data node fails a read (fsspec returns the error page as
data), upload in one request that replaces nothing, and the next name node where one is down or on standby.
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
"""What a ranged read takes with it of what follows. Arrow reads a row group column by column, tens of reads of some
kilobytes one behind the other, and each of them would be two requests; so they are one or two for all. An open file
holds as much."""
_BINARY = {"content-type": "application/octet-stream"}


class WebHdfsClient(WebHDFS):  # type: ignore[misc]  # fsspec is published without types
    """A client of one name service; paths are absolute."""

    cachable = False  # one a store: fsspec's cache would share a session between forked processes

    def __init__(self, nodes: NameNodes, *, user: str) -> None:
        """Connect to nothing yet.

        Args:
            nodes: Where the name service answers.
            user: Who to say one is; with Kerberos the ticket says it.
        """
        host, _, port = nodes.web[0].rpartition(":")
        super().__init__(host, int(port), kerberos=nodes.kerberos, user=None if nodes.kerberos else user, use_https=nodes.https)
        self._bases = [f"{'https' if nodes.https else 'http'}://{address}/webhdfs/v1" for address in nodes.web]
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, _WithDeadline())

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """Rename a file in one edit of the name node's journal.

        Raises:
            RuntimeError: it did not happen: the target is there and may not be overwritten, or there is no source.
        """
        self._call("RENAME", "put", path=source, destination=target, renameoptions="OVERWRITE" if overwrite else "NONE")

    def create(self, path: str, data: bytes | BinaryIO | RawIOBase) -> None:
        """Write a new file, folders above it included.

        Raises:
            RuntimeError: it is there already, may not be written, or no data node takes it.
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
        """Open a file for ranged reads, each of them from what was read ahead or by one request."""
        opened: BinaryIO = _Ranges(self, path, mode="rb", cache_type="readahead", block_size=AHEAD_BYTES, tempdir=self.tempdir,
                                   autocommit=True)
        return opened

    def _call(self, op: str, method: str = "get", path: str | None = None, data: Any = None,
              redirect: bool = True, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002 - fsspec's own signature
        """One request, at the next name node where this one is down or on standby."""
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
    """What a data node says was wrong."""
    try:
        return str(answer.json()["RemoteException"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code} {answer.reason}"


class _Ranges(WebHDFile):  # type: ignore[misc]
    """An open file whose reads are checked."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        start, end = max(start, 0), min(end, self.size)
        if start >= end:
            return b""
        data: bytes = self.fs._call("OPEN", path=self.path, offset=start, length=end - start).content  # noqa: SLF001 - as its base class does
        if len(data) != end - start:
            raise StorageError(f"{self.path}: a data node sent {len(data)} of the {end - start} bytes from {start} on; try again.")
        return data


class _WithDeadline(HTTPAdapter):
    """Gives every request that has no deadline of its own one."""

    def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Send it."""
        kwargs["timeout"] = kwargs.get("timeout") or (CONNECT_S, READ_S)
        return super().send(request, *args, **kwargs)
