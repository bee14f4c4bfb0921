"""Databricks' Files API on loopback, over a folder: the requests that databricks-sdk makes for a volume.

    with files_api(folder, volume="/Volumes/c/s/v") as environment: ...

The folder is the volume's own, behind its mount (volume_mount.py). A PUT with ``overwrite=false`` is atomic, as it is there. Every
request needs the token. It can be made to fail as servers do: see ``Flaw``.

Source: https://docs.databricks.com/api/workspace/files
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlparse

from tests.support.daemons import daemon

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "token-of-a-test"
FILES, FOLDERS = "/api/2.0/fs/files", "/api/2.0/fs/directories"
PAGE = 3
"""Entries of a listing in one answer: few, so that there are several."""
Flaw = Literal["none", "overwrites", "lost requests", "lost answers", "no volume"]
"""``overwrites``: overwrite=false is not looked at. ``lost requests``: the first PUT of each file is not answered, nor done. ``lost
answers``: it is not answered, but done. ``no volume``: the workspace has no volume of this name."""


@contextmanager
def files_api(folder: Path, *, volume: str, flaw: Flaw = "none") -> Iterator[dict[str, str]]:
    """Serve ``folder`` as ``volume`` for the length of the block; yields the environment that leads databricks-sdk to it."""
    log = folder.parent / f"files-api-{uuid.uuid4().hex}.log"
    with daemon([sys.executable, "-m", "tests.support.files_api", folder, volume, flaw], log=log,
                environment={"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}) as server:
        port = server.said(r"listening on (\d+)")
        yield {"DATABRICKS_HOST": f"http://127.0.0.1:{port}", "DATABRICKS_TOKEN": TOKEN}


class _Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *args: Any, folder: Path, volume: str, flaw: str, lost: set[str]) -> None:
        self._folder, self._volume, self._flaw, self._lost = folder, volume, flaw, lost
        super().__init__(*args)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_PUT(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self._body()
        try:
            self._act(body)
        except _Refused as error:
            self._send(error.status, json.dumps({"error_code": error.code, "message": str(error)}).encode())

    def _act(self, body: bytes) -> None:
        url = urlparse(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        address = unquote(url.path)
        kind = next((kind for kind in (FILES, FOLDERS) if address.startswith(f"{kind}/")), None)
        if kind is None:
            raise _Refused(404, "ENDPOINT_NOT_FOUND", f"no such endpoint: {address}")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise _Refused(401, "UNAUTHENTICATED", "no valid token")
        name = address.removeprefix(kind)
        if self._flaw == "no volume":
            raise _Refused(404, "NOT_FOUND", f"{self._volume} does not exist")
        place = self._place(name)
        if kind == FILES:
            self._file(place, name, query, body)
        else:
            self._directory(place, name, query)

    def _file(self, place: Path, name: str, query: dict[str, str], body: bytes) -> None:
        if self.command == "PUT":
            self._put(place, name, body, overwrite=query.get("overwrite", "true") == "true" or self._flaw == "overwrites")
            return
        if not place.is_file():
            raise _Refused(404, "NOT_FOUND", f"{name} does not exist")
        if self.command == "DELETE":
            place.unlink()
            self._send(204)
        else:
            self._send(200, place.read_bytes(), kind="application/octet-stream", changed=place.stat().st_mtime)

    def _put(self, place: Path, name: str, body: bytes, *, overwrite: bool) -> None:
        self.close_connection = unanswered = self._flaw.startswith("lost") and name not in self._lost
        self._lost.add(name)
        if unanswered and self._flaw == "lost requests":
            return
        if not place.parent.is_dir():
            raise _Refused(404, "NOT_FOUND", f"the folder of {name} does not exist")
        incoming = self._folder.parent / f"incoming-{uuid.uuid4().hex}"
        incoming.write_bytes(body)
        try:
            if overwrite:
                incoming.replace(place)
            else:
                os.link(incoming, place)
        except FileExistsError:
            raise _Refused(409, "ALREADY_EXISTS", f"{name} exists already") from None
        finally:
            incoming.unlink(missing_ok=True)
        if not unanswered:
            self._send(204)

    def _directory(self, place: Path, name: str, query: dict[str, str]) -> None:
        if self.command == "PUT":
            place.mkdir(parents=True, exist_ok=True)
            self._send(204)
            return
        if not place.is_dir():
            raise _Refused(404, "NOT_FOUND", f"{name} does not exist")
        if self.command == "DELETE":
            shutil.rmtree(place)
            self._send(204)
            return
        begin = int(query.get("page_token", "0"))
        entries = sorted(place.iterdir())
        page = [{"name": entry.name, "path": f"{name.rstrip('/')}/{entry.name}", "is_directory": entry.is_dir(),
                 **({} if entry.is_dir() else {"file_size": entry.stat().st_size, "last_modified": int(entry.stat().st_mtime * 1000)})}
                for entry in entries[begin:begin + PAGE]]
        more = {"next_page_token": str(begin + PAGE)} if begin + PAGE < len(entries) else {}
        self._send(200, json.dumps({"contents": page, **more}).encode())

    def _place(self, name: str) -> Path:
        """Where a path of the volume lies in the folder."""
        if not (name == self._volume or name.startswith(f"{self._volume}/")) or ".." in name.split("/"):
            raise _Refused(403, "PERMISSION_DENIED", f"{name} is not in {self._volume}")
        return self._folder / name.removeprefix(self._volume).strip("/")

    def _body(self) -> bytes:
        """What was sent, by length or in chunks."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _send(self, status: int, data: bytes = b"", *, kind: str = "application/json", changed: float | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if changed is not None:
            self.send_header("Last-Modified", formatdate(changed, usegmt=True))
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


if __name__ == "__main__":
    serving = partial(_Handler, folder=Path(sys.argv[1]), volume=sys.argv[2], flaw=sys.argv[3], lost=set())
    with ThreadingHTTPServer(("127.0.0.1", 0), serving) as listening:
        print(f"listening on {listening.server_address[1]}", flush=True)
        listening.serve_forever()
