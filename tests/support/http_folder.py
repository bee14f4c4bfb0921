"""A folder served by Python's own HTTP server on loopback, with ranges or, as that server is, without.

    with http_folder(folder, ranges=True) as url: ...       url is http://127.0.0.1:<port>
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class _Quiet(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class _Ranges(_Quiet):
    def do_GET(self) -> None:
        """A part of a file where one is asked for."""
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if not found or not path.is_file():
            super().do_GET()
            return
        data, (first, last) = path.read_bytes(), (int(number) for number in found.groups())
        part = data[first:last + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)


@contextmanager
def http_folder(folder: Path, *, ranges: bool) -> Iterator[str]:
    """Serve ``folder`` for the length of the block."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Ranges if ranges else _Quiet, directory=str(folder))) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(timeout=20)
