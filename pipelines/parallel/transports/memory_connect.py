"""Connecting the ranks of a host for ``MemoryLink``: a Unix socket per pair of ranks that share an edge.

    each rank      listens in /dev/shm, mode 0600, under a name with the launch's random token
    higher rank    connects to the lower one, and sends its own number

The names are removed once all ranks have connected (shared_memory/named_files.py removes those of killed ranks). Only processes
of the same user are accepted.
"""

from __future__ import annotations

import os
import resource
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.shared_memory.named_files import socket_path
from sparkring.pipelines.parallel.transports.base import Edge
from sparkring.pipelines.parallel.transports.memory import MemoryLink


def open_memory_links(communicator: Communicator, edges: Sequence[Edge]) -> dict[int, MemoryLink] | None:
    """Connect this rank with those of its host with which it shares an edge. Every rank of the ring calls this.

    Args:
        communicator: The joined ring.
        edges: Edges within hosts, of all ranks.
    Returns:
        The links by rank; None on all ranks if any two cannot reach each other (no /dev/shm, or a container that hides it).
    """
    context = communicator.context
    _raise_file_limit()
    mine = [edge for edge in edges if context.rank in edge[:2]]
    peers = sorted({rank for edge in mine for rank in edge[:2]} - {context.rank})
    path = socket_path(context.token, context.rank)
    sockets: dict[int, socket.socket | None] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            if not communicator.agree(mine=_listening(listener, path, context.size), name="links.listen"):
                return None
            sockets.update({peer: _connected(socket_path(context.token, peer), context.rank) for peer in peers if peer < context.rank})
            if communicator.agree(mine=None not in sockets.values(), name="links.connect"):
                listener.settimeout(context.deadline_s)
                sockets.update(_accepted(listener) for peer in peers if peer > context.rank)
        finally:
            path.unlink(missing_ok=True)
    complete = sorted(peer for peer, connected in sockets.items() if connected is not None) == peers
    if not communicator.agree(mine=complete, name="links.accept"):
        for connected in sockets.values():
            if connected is not None:
                connected.close()
        return None
    return {peer: MemoryLink(connected, [edge for edge in mine if peer in edge[:2]], pinned=context.device != "cpu")
            for peer, connected in sockets.items() if connected is not None}


def _raise_file_limit() -> None:
    """Allow as many open files as this process may have: each buffer's map keeps one open in both ranks, and 1024 is a usual limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # the kernel does not grant "no limit"
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _listening(listener: socket.socket, path: Path, most: int) -> bool:
    """Listen at ``path``, where only this user may connect; returns whether that worked."""
    try:
        listener.bind(str(path))
        path.chmod(0o600)  # before anybody can connect
        listener.listen(most)
    except OSError:
        return False
    return True


def _connected(path: Path, rank: int) -> socket.socket | None:
    """A socket to the rank that listens at ``path``, which has been sent ``rank``; None if it cannot be reached."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connected.connect(str(path))
        connected.sendall(struct.pack("<I", rank))
    except OSError:
        connected.close()
        return None
    return connected


def _accepted(listener: socket.socket) -> tuple[int, socket.socket | None]:
    """The next rank that has connected, and its socket; no socket if it is another user's process."""
    connected, _ = listener.accept()
    connected.settimeout(listener.gettimeout())
    _, user, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        connected.close()
        return -1, None
    return struct.unpack("<I", connected.recv(4))[0], connected
