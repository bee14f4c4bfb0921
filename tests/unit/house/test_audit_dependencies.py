"""The audit of locked packages, against a vulnerability service on loopback that speaks as OSV does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

ROOT = Path(__file__).resolve().parents[3]
LOCK = """
[[package]]
name = "sparkring"
version = "0.1"
source = { editable = "." }

[[package]]
name = "whole"
version = "1.0"
source = { registry = "https://index" }
wheels = [{ url = "https://index/whole.whl", hash = "sha256:00" }]

[[package]]
name = "holed"
version = "2.0"
source = { registry = "https://index" }
sdist = { url = "https://index/holed.tar.gz", hash = "sha256:00" }
"""
EXCEPTION = '[[exception]]\nid = "{id}"\npackage = "{package}"\nreason = "{reason}"\nexpires = {expires}\n'


class _Service(BaseHTTPRequestHandler):
    asked: ClassVar[list[object]] = []

    def do_POST(self) -> None:
        queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        self.asked.append(queries)
        self._answer({"results": [{"vulns": [{"id": "PYSEC-1"}, {"id": "PYSEC-2"}]} if query["package"]["name"] == "holed" else {}
                                  for query in queries]})

    def do_GET(self) -> None:
        taken_back = {"withdrawn": "2026-01-01T00:00:00Z"} if self.path.endswith("PYSEC-2") else {}
        self._answer({"aliases": ["CVE-7"], "summary": "runs what it reads", **taken_back})

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, document: object) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Service)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def audit(tmp_path: Path, service: str) -> Callable[..., tuple[int, str]]:
    def run(*options: str, lock: str = LOCK, exceptions: str = "", at: str = service) -> tuple[int, str]:
        (tmp_path / "uv.lock").write_text(lock, encoding="utf-8")
        (tmp_path / "exceptions.toml").write_text(exceptions, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(ROOT / "scripts/audit_dependencies.py"), "--lock", str(tmp_path / "uv.lock"), "--service", at,
             "--exceptions", str(tmp_path / "exceptions.toml"), *options], capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr
    return run


def test_a_hole_without_an_exception_stops_the_build_and_is_named(audit: Callable[..., tuple[int, str]]) -> None:
    code, said = audit()
    assert code == 1
    assert "holed 2.0 PYSEC-1 CVE-7: runs what it reads -- NOT EXCEPTED" in said
    assert "2 locked packages, 1 findings, 1 of them without an exception" in said  # PYSEC-2 was withdrawn
    assert [query["package"]["name"] for query in _Service.asked[-1]] == ["whole", "holed"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("change", "code"), [
    pytest.param({}, 0, id="by the other name"), pytest.param({"id": "PYSEC-1"}, 0, id="by the service's name"),
    pytest.param({"expires": "2020-01-01"}, 1, id="expired"), pytest.param({"package": "whole"}, 1, id="of another package"),
    pytest.param({"reason": " "}, 2, id="without a reason"), pytest.param({"expires": '"soon"'}, 2, id="without an end")])
def test_an_exception_holds_for_one_hole_of_one_package_until_it_expires(
        audit: Callable[..., tuple[int, str]], change: dict[str, str], code: int) -> None:
    fields = {"id": "CVE-7", "package": "holed", "reason": "not reached", "expires": "2999-12-31"} | change
    assert audit(exceptions=EXCEPTION.format(**fields))[0] == code


def test_a_service_that_cannot_be_reached_is_said_and_stops_nothing(audit: Callable[..., tuple[int, str]]) -> None:
    code, said = audit(at="http://127.0.0.1:9")
    assert code == 0
    assert "2 locked packages were NOT audited, the service cannot be asked" in said
    assert audit("--require", at="http://127.0.0.1:9")[0] == 3


def test_a_locked_file_without_a_hash_stops_the_build(audit: Callable[..., tuple[int, str]]) -> None:
    code, said = audit(lock=re.sub(r', hash = "sha256:00" }\n', " }\n", LOCK))
    assert code == 1
    assert "holed: https://index/holed.tar.gz" in said


def test_the_project_s_own_lock_has_a_hash_for_every_file_and_its_exceptions_can_be_read(audit: Callable[..., tuple[int, str]]) -> None:
    exceptions = (ROOT / "scripts/audit_exceptions.toml").read_text(encoding="utf-8")
    code, said = audit(lock=(ROOT / "uv.lock").read_text(encoding="utf-8"), exceptions=exceptions, at="http://127.0.0.1:9")
    assert (code, "NOT audited" in said) == (0, True)
    assert all(excuse["package"] == "horovod" for excuse in tomllib.loads(exceptions)["exception"])
