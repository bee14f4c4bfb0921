"""A real S3 HTTP server on loopback: moto's, in a process of its own.

    with s3_server(folder) as endpoint: ...

It answers one request at a time: moto looks whether a key is there and then writes it, and only so is its conditional PUT
the one act that S3's is. A request is read before its turn, so a client that is stopped while it sends one holds up nobody.
It can be made to fail as servers do: see ``Flaw``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tests.support.daemons import daemon

Flaw = Literal["none", "no conditions", "lost answers", "refused part", "away"]
"""``no conditions``: If-None-Match is not looked at, as by old servers. ``lost answers``: the first PUT of each key is done, and
answered by an error 500 all the same. ``refused part``: each PUT of a part of the checkpoint after 8 steps is answered by an error 503.
``away``: while there is a file ``away`` in the server's folder, every request is answered by an error 503, and noted in ``refused``."""
SERVE = """
import io
import sys
from pathlib import Path
from threading import Lock
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

turn = Lock()
moto, answered, flaw, folder = DomainDispatcherApplication(create_backend_app), set(), sys.argv[1], Path(sys.argv[2])

def serve(environment, start):
    if environment.get("CONTENT_LENGTH"):
        environment["wsgi.input"] = io.BytesIO(environment["wsgi.input"].read(int(environment["CONTENT_LENGTH"])))
    with turn:
        return [b"".join(answer(environment, start))]

def answer(environment, start):
    path, put = environment["PATH_INFO"], environment["REQUEST_METHOD"] == "PUT"
    if flaw == "no conditions":
        environment.pop("HTTP_IF_NONE_MATCH", None)
    if flaw == "lost answers" and put and path.count("/") > 1 and path not in answered:
        answered.add(path)
        list(moto(environment, lambda status, headers, *_: lambda data: None))
        start("500 Internal Server Error", [("Content-Length", "0")])
        return [b""]
    away = flaw == "away" and (folder / "away").exists()
    if away:
        with (folder / "refused").open("a") as refused:
            refused.write(environment["REQUEST_METHOD"] + " " + path + "\\n")
    if away or flaw == "refused part" and put and "/checkpoints/data/8-" in path:
        environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
        start("503 Slow Down", [("Content-Length", "0")])
        return [b""]
    return moto(environment, start)

class OneRequest(WSGIRequestHandler):
    protocol_version = "HTTP/1.0"

server = make_server("127.0.0.1", 0, serve, threaded=True, request_handler=OneRequest)
print(f"listening on {server.port}", flush=True)
server.serve_forever()
"""
KEYS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true"}


@contextmanager
def s3_server(folder: Path, *, flaw: Flaw = "none") -> Iterator[dict[str, str]]:
    """Run the server for the length of the block; yields the environment that leads AWS's tools to it."""
    with daemon([sys.executable, "-c", SERVE, flaw, str(folder)], log=folder / "s3.log") as server:
        port = server.said(r"listening on (\d+)")
        yield {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
