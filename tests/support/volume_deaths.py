"""Processes that are killed in the middle of a write into a volume, as its mount then sees it: a file that ends early.

    python -m tests.support.volume_deaths put FOLDER
    python -m tests.support.volume_deaths events FOLDER            as a rank writes them
    python -m tests.support.volume_deaths events_again FOLDER      as if the last file could be written again safely
    python -m tests.support.volume_deaths checkpoint FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import cast

from sparkring.pipelines.data.stores.pieces import Pieces
from sparkring.pipelines.data.stores.volume import VolumeStore
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument, Position
from sparkring.pipelines.training.checkpoints.files import CheckpointFiles
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.events.lines import ShippedLines
from sparkring.pipelines.training.events.writer import EventWriter


class Killed(VolumeStore):
    """Its first ``put`` is the last act of this process."""

    def put(self, name: str, data: bytes) -> None:
        """Write half of it."""
        def halves() -> Iterator[bytes]:
            yield data[:len(data) // 2]
            os.kill(os.getpid(), signal.SIGKILL)

        self.put_pieces(name, cast("Pieces", halves()))


def put(folder: str) -> None:
    """A document."""
    Killed(folder).put("document.json", b"0123456789")


def events(folder: str, *, write_once: bool = True) -> None:
    """Steps 0 to 3 are settled, 4 and 5 are being written."""
    writer = EventWriter(folder, generation=0, rank=0)
    lines = writer._lines
    assert isinstance(lines, ShippedLines)
    assert lines._write_once
    lines._write_once = write_once
    for step in range(4):
        writer.write("step", step=step)
    writer.settle()
    for step in range(4, 6):
        writer.write("step", step=step)
    lines._store = Killed(folder)
    writer.settle()


def events_again(folder: str) -> None:
    """The same, without the precaution."""
    events(folder, write_once=False)


def checkpoint(folder: str) -> None:
    """That after 4 steps is committed, that after 8 is being committed."""
    for steps, store in ((4, VolumeStore(folder)), (8, Killed(folder))):
        checkpoints = Checkpoints(folder)
        checkpoints._files = CheckpointFiles(store)
        part = checkpoints.put_part(b"state", steps=steps, rank=0)
        checkpoints.commit(CheckpointDocument(
            position=Position(epoch=1, step=2, steps_done=steps), validation=None, content_id="c", dataset_version=1, seed=1, lanes=24,
            batch_rows=8, code_version="test", parts=(part,)))


if __name__ == "__main__":
    {"put": put, "events": events, "events_again": events_again, "checkpoint": checkpoint}[sys.argv[1]](sys.argv[2])
