"""Strangers on this machine who knock at every port of a job, and witnesses of what that does to it.

The witness of unpickling is an audit hook in every Python process that the job starts: ``AUDIT_SITE`` is a ``sitecustomize.py``.
"""

from __future__ import annotations

import itertools
import os
import pickle
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil

LOOPBACK, STRANGER = "127.0.0.1", "127.0.0.2"
NUM_SLOW = 16
ANSWER_TIMEOUT_S = 20.0

AUDIT_SITE = '''
import os, sys, time

def hook(event, args):
    if event == "pickle.find_class":
        with open(os.path.join(os.environ["SPARKRING_AUDIT"], f"{os.getpid()}.unpickled"), "a") as file:
            file.write(f"{time.time()} {args[0]}.{args[1]}\\n")

sys.addaudithook(hook)
'''
"""Notes every class that a pickle asks for, with the time, in a file per process."""


def audited(folder: Path) -> dict[str, str]:
    """Variables under which every Python process notes in ``folder/audit`` what it unpickles."""
    for name in ("site", "audit"):
        (folder / name).mkdir()
    (folder / "site" / "sitecustomize.py").write_text(AUDIT_SITE, encoding="ascii")
    path = os.pathsep.join(filter(None, [str(folder / "site"), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "SPARKRING_AUDIT": str(folder / "audit")}


def unpickled(folder: Path, *, since: float, until: float) -> list[str]:
    """What was unpickled in a stretch of time, as ``module.class``, by all processes."""
    notes = [line.split(maxsplit=1) for file in (folder / "audit").iterdir() for line in file.read_text(encoding="utf-8").splitlines()]
    return [what for when, what in notes if since <= float(when) <= until]


class Payload:
    """Leaves a file where it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """As ``pickle`` asks for it."""
        return os.mkdir, (str(self._trace),)


@dataclass
class Loot:
    """What strangers got."""

    answers: set[bytes] = field(default_factory=set)
    num_requests: int = 0
    slow_s: list[float] = field(default_factory=list)
    """How long each slow client was suffered."""


def listening(pid: int) -> dict[tuple[str, int], psutil.Process]:
    """Address and port of every TCP socket that a process and its descendants listen on, each with its owner."""
    found = {}
    process = psutil.Process(pid)
    for member in [process, *process.children(recursive=True)]:
        try:
            for connection in member.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found[connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port] = member
        except psutil.Error:
            continue  # it ended meanwhile
    return found


def command_lines(pid: int) -> str:
    """Of a process and its descendants."""
    lines = []
    try:
        process = psutil.Process(pid)
        members = [process, *process.children(recursive=True)]
    except psutil.Error:
        return ""  # it has ended
    for member in members:
        try:
            lines.append(" ".join(member.cmdline()))
        except psutil.Error:
            continue
    return "\n".join(lines)


def attack(ports: Sequence[int], *, num_requests: int, secret: str, old_secret: str, trace: Path) -> Loot:
    """Send hostile requests to all ports from several threads, with slow ones beside them, and wait for their ends.

    Args:
        ports: On 127.0.0.1.
        num_requests: Beside the slow ones.
        secret: Of the job; used from a wrong address only.
        old_secret: Of a job that has ended.
        trace: A folder that does not exist; it does if a payload was unpickled.
    """
    loot, lock = Loot(), threading.Lock()
    requests = itertools.islice(zip(itertools.cycle(ports), hostile_requests(secret, old_secret, trace), strict=False), num_requests)

    def strike() -> None:
        while True:
            with lock:
                chosen = next(requests, None)
            if chosen is None:
                return
            port, (source, request) = chosen
            answer = ask(port, request, source=source)
            with lock:
                loot.num_requests += 1
                loot.answers.add(answer)

    def dawdle(port: int) -> None:
        suffered_s = drip(port, f"PUT /{old_secret}:1/global/0 HTTP/1.1\r\nContent-Length: 4000000\r\nX-Slow: ".encode())
        with lock:
            loot.slow_s.append(suffered_s)

    with ThreadPoolExecutor(4 + NUM_SLOW) as pool:
        futures = [pool.submit(dawdle, port) for port in itertools.islice(itertools.cycle(ports), NUM_SLOW)]
        futures += [pool.submit(strike) for _ in range(4)]
        for future in futures:
            future.result()
    return loot


def hostile_requests(secret: str, old_secret: str, trace: Path) -> Iterator[tuple[str, bytes]]:
    """Source address and bytes of one hostile request after the other, in a fixed mixture."""
    payload, chance = pickle.dumps(Payload(trace)), random.Random(7)
    strange = struct.pack("i", len(payload)) + payload

    def http(method: str, path: str, body: bytes = b"", *, length: object = None) -> bytes:
        return f"{method} {path} HTTP/1.1\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body

    scopes = ("global", "local_host-0", "cross_0", "worker_addresses", "rank_and_size", "runfunc")
    while True:
        scope, rank = chance.choice(scopes), chance.randrange(2)
        wrong = f"{chance.getrandbits(128):032x}"
        yield LOOPBACK, http("GET", f"/{scope}/{rank}")  # as upstream's server would take it: unsigned
        yield LOOPBACK, http("PUT", f"/{scope}/host:{rank}", payload)
        yield LOOPBACK, http("DELETE", f"/{scope}/{rank}")
        yield LOOPBACK, http("PUT", f"/{wrong}:1/{scope}/{rank}", b"\0" * 136)  # a guess
        yield LOOPBACK, http("DELETE", f"/{wrong}:1/global/{rank}")
        yield LOOPBACK, http("GET", f"/{old_secret}:1/global/{rank}")  # replayed
        yield LOOPBACK, http("DELETE", f"/{old_secret}:1/global/{rank}")
        yield LOOPBACK, http("PUT", f"/{old_secret}/{rank}", b"0")  # "this rank has died", to the board
        yield STRANGER, http("DELETE", f"/{secret}:1/global/{rank}")  # from a wrong address, with the right secret
        yield STRANGER, http("PUT", f"/{secret}/{rank}", b"0")
        yield LOOPBACK, http("PUT", f"/{scope}/{rank}", b"x" * 65536, length=1 << chance.randrange(20, 70))  # oversized
        yield LOOPBACK, http("PUT", f"/{old_secret}:1/global/0", length=chance.choice(["-1", "9" * 400, "x", "1e9"]))
        yield LOOPBACK, chance.randbytes(chance.randrange(1, 300))  # malformed
        yield LOOPBACK, b"GET " + b"/" * 70000 + b" HTTP/1.1\r\n\r\n"
        yield LOOPBACK, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 3000
        yield LOOPBACK, chance.randbytes(32) + strange  # as upstream's services take it, with a digest that is none
        yield STRANGER, bytes(32) + strange
        yield LOOPBACK, chance.randbytes(32) + struct.pack("i", -1) + payload
        yield LOOPBACK, chance.randbytes(32) + struct.pack("i", (1 << 31) - 1) + payload


def ask(port: int, request: bytes, *, source: str) -> bytes:
    """Send a request, say that no more comes, and read until the other side hangs up."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=ANSWER_TIMEOUT_S, source_address=(source, 0)) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))
    except OSError:
        return b""


def drip(port: int, opening: bytes) -> float:
    """Send a byte now and then until the other side hangs up; seconds that it took to do so."""
    began = time.monotonic()
    try:
        with socket.create_connection((LOOPBACK, port), timeout=0.2) as connection:
            connection.sendall(opening)
            while time.monotonic() - began < 3 * ANSWER_TIMEOUT_S:
                connection.sendall(b"y")
                try:
                    if not connection.recv(4096):
                        break
                except TimeoutError:
                    continue
    except OSError:
        pass
    return time.monotonic() - began
