"""The meeting on one host, where the tasks of a ring exchange their facts in milliseconds instead of Spark's second.

Spark's own ``allGather`` polls once a second. Tasks that share a network namespace meet at an abstract Unix socket instead; the task of
partition 0 is the host:

    host                                      guest
      listen                                    connect, again and again for MEET_S
      all are here  ----- yes ------------->    gather here from now on
      MEET_S is over ---- no -------------->    gather by Spark
                                                no host in MEET_S: gather by Spark
      gather: take a text of each, give all     give one, take all

All of them reach the same conclusion: if a guest found no host, the host says no to the others. The kernel reports the peer's user; other
users are refused, and so is a peer without the launch's secret.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from sparkring.errors import EnvironmentProblem
from sparkring.spark_jobs.launch.rank.framing import read_message, write_message

MEET_S = 5.0
"""Seconds to wait for the other tasks, which Spark starts at once; then the tasks meet by Spark instead."""
LOOK_S = 0.01
HELLO_S = 2.0
"""Seconds for a guest to name its partition and the secret."""


class LocalMeeting:
    """A meeting that all tasks have come to.

    Args:
        guests: Connections to the other tasks, by partition, on the host's side; to the host alone on a guest's.
        host: Whether this is the host's side.
        deadline_s: Seconds to wait for another task.
    """

    def __init__(self, guests: Sequence[socket.socket], *, host: bool, deadline_s: float) -> None:
        self._host = host
        self._streams = []
        for connection in guests:
            connection.settimeout(deadline_s)
            self._streams.append((connection.makefile("rb"), connection.makefile("wb")))
            connection.close()  # takes effect when its streams are closed

    def gather(self, text: str) -> list[str]:
        """Give this task's text and get everyone's, by partition.

        Raises:
            EnvironmentProblem: a task is gone, or silent.
        """
        try:
            if not self._host:
                from_host, to_host = self._streams[0]
                write_message(to_host, text.encode())
                texts: list[str] = json.loads(_expect(read_message(from_host)))
                return texts
            texts = [text, *(_expect(read_message(from_guest)).decode() for from_guest, _ in self._streams)]
            for _, to_guest in self._streams:
                write_message(to_guest, json.dumps(texts).encode())
            return texts
        except OSError as error:
            raise EnvironmentProblem(f"a task left the meeting of this ring's tasks ({error}); see the executors' logs for why.") from error

    def close(self) -> None:
        """Close the connections."""
        for streams in self._streams:
            for stream in streams:
                with suppress(OSError):
                    stream.close()


def meet(partition: int, *, num_tasks: int, secret: str, deadline_s: float, within_s: float = MEET_S) -> LocalMeeting | None:
    """Meet the other tasks of this launch.

    Args:
        partition: This task's partition; the task of partition 0 is the host.
        num_tasks: Number of tasks that must come.
        secret: The launch's secret; it names the socket and authenticates the tasks.
        deadline_s: Seconds to wait for a task in the meeting.
        within_s: Seconds to wait for the meeting.
    Returns:
        The meeting, or None, in every task, if not all have come.
    """
    try:
        if partition == 0:
            return _receive(num_tasks, secret, deadline_s, within_s)
        return _visit(partition, secret, deadline_s, within_s)
    except OSError:
        return None  # the host has not said yes yet, so it will say no to the others


def _receive(num_tasks: int, secret: str, deadline_s: float, within_s: float) -> LocalMeeting | None:
    guests: dict[int, socket.socket] = {}
    until = time.monotonic() + within_s
    with ExitStack() as connections, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(_socket_name(secret))
        listener.listen(num_tasks)
        while len(guests) < num_tasks - 1 and (left := until - time.monotonic()) > 0:
            listener.settimeout(left)
            try:
                connection = connections.enter_context(listener.accept()[0])
            except TimeoutError:
                break
            partition = _who(connection, secret)
            if partition is not None:
                guests[partition] = connection
        everyone = guests.keys() == set(range(1, num_tasks))
        for connection in guests.values():
            connection.sendall(b"y" if everyone else b"n")
        if not everyone:
            return None
        connections.pop_all()
    return LocalMeeting([guests[partition] for partition in range(1, num_tasks)], host=True, deadline_s=deadline_s)


def _visit(partition: int, secret: str, deadline_s: float, within_s: float) -> LocalMeeting | None:
    until = time.monotonic() + within_s
    with ExitStack() as connections:
        while True:
            connection = connections.enter_context(socket.socket(socket.AF_UNIX))
            try:
                connection.connect(_socket_name(secret))
                break
            except ConnectionRefusedError:
                if time.monotonic() > until:
                    return None
                time.sleep(LOOK_S)
        if not _same_user(connection):
            return None
        connection.settimeout(2 * within_s + HELLO_S)
        connection.sendall(json.dumps({"secret": secret, "partition": partition}).encode())
        if connection.recv(1) != b"y":
            return None
        connections.pop_all()
    return LocalMeeting([connection], host=False, deadline_s=deadline_s)


def _socket_name(secret: str) -> str:
    """A name that cannot be guessed without the secret; the leading zero byte makes the socket abstract."""
    return f"\0sparkring-{hashlib.sha256(secret.encode()).hexdigest()[:32]}"


def _who(connection: socket.socket, secret: str) -> int | None:
    """The partition of a guest, or None if the guest is not a task of this launch."""
    if not _same_user(connection):
        return None
    connection.settimeout(HELLO_S)
    try:
        hello = json.loads(connection.recv(1 << 12))
        return int(hello["partition"]) if hmac.compare_digest(str(hello["secret"]), secret) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _same_user(connection: socket.socket) -> bool:
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.getuid())


def _expect(message: bytes | None) -> bytes:
    if message is None:
        raise ConnectionError("it hung up")
    return message
