"""What a link through memory leaves behind in its process: no open file, however its messages ended. Both ends are in this process."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch

from sparkring.errors import PipelineShapeError
from sparkring.pipelines.parallel.transports.base import Edge
from sparkring.pipelines.parallel.transports.memory import MemoryLink
from sparkring.pipelines.parallel.transports.signals import PeerEnded
from sparkring.pipelines.parallel.transports.tensor_specs import TensorSpecs

EDGE = Edge(0, 1, "f1")
COUNT = 40
"""Messages: each in a buffer of its own, since none of them is received."""
MESSAGE = [torch.ones(10)]


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _ends() -> tuple[MemoryLink, socket.socket]:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return MemoryLink(mine, [EDGE]), theirs


def _send(link: MemoryLink, micro_batch: int, tensors: list[torch.Tensor]) -> None:
    link.send(EDGE, micro_batch, TensorSpecs.of(tensors), tensors, rows=1)


def _fill(link: MemoryLink) -> None:
    """Until most datagrams are late: the socket takes but a few."""
    link._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
    for micro_batch in range(COUNT):
        _send(link, micro_batch, MESSAGE)
    assert len(link._late) > COUNT // 2


def test_files_of_messages_that_nobody_took_are_closed_with_the_link() -> None:
    before = _open_files()
    link, theirs = _ends()
    _fill(link)
    assert _open_files() > before + COUNT + COUNT // 2, "the control: beside the one that each buffer's map keeps, files that wait are open"
    link.close()
    theirs.close()
    assert _open_files() == before


def test_files_of_messages_to_one_that_has_ended_are_closed_too() -> None:
    before = _open_files()
    link, theirs = _ends()
    theirs.close()
    for micro_batch in range(3):
        with pytest.raises(PeerEnded):
            _send(link, micro_batch, MESSAGE)
    link.close()
    assert _open_files() == before


def test_what_cannot_be_sent_leaves_no_file_open() -> None:
    before = _open_files()
    link, theirs = _ends()
    with pytest.raises(PipelineShapeError, match="transports carry dense ones"):
        _send(link, 0, [torch.ones(2, 2).to_sparse()])
    link.close()
    theirs.close()
    assert _open_files() == before
