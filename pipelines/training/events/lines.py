"""Storage of one rank's event lines: appended to a local file, or shipped in segments to a store that cannot append.

    local, mounted    events/<generation>-<rank>.jsonl                              each line reaches the file when it is written
    S3, HDFS, ...     events/<generation>-<rank>.jsonl, <...>.1.jsonl, <...>.2.jsonl   segments of whole lines; the last one is
                                                                                       written again as it grows, the others stay
    volumes           the same names                                                   each shipment is a segment of its own: a rank that
                                                                                       is killed while it writes one again could cut off
                                                                                       lines that are stored

A full disk, or storage that is away, does not stop training: lines wait in memory until they can be stored. A checkpoint calls ``settle``
before its commit: all lines so far then outlive the machine, or it raises. This module does not interpret lines.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.local import LocalStore
from sparkring.pipelines.data.stores.volume import VolumeStore

SEGMENT_BYTES = 256 * 1024
"""Bytes from which a segment is closed. Each shipment sends its last segment again, so this limits the bytes that are sent again."""
SHIP_S = 2.0
"""Seconds between two shipments while lines come."""
SHIP_ONCE_S, SLOWER_AFTER = 10.0, 60
"""The same where each shipment adds a file: first this long, twice as long after so many files, three times after twice as many, ..., so
that a rank leaves a thousand files a day and not 8640."""


class Lines(Protocol):
    """One rank's lines on their way to storage; may be used by several threads."""

    def append(self, line: str) -> None:
        """Take a line, without its newline; never fails because of storage."""
        ...

    def settle(self) -> None:
        """Put all lines so far into storage, so that they outlive this machine as far as its storage does.

        Raises:
            OSError: some are not stored; they stay in memory, and a later call may succeed.
        """
        ...

    def close(self) -> None:
        """Store what can be stored, and end."""
        ...


def open_lines(store: Store, name: str) -> Lines:
    """Begin the file ``name``."""
    if isinstance(store, LocalStore):
        return AppendedLines(Path(store.path(name)))
    return ShippedLines(store, name, write_once=isinstance(store, VolumeStore))


class AppendedLines:
    """Lines appended to a local file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._waiting = bytearray()
        self._guard = threading.Lock()

    def append(self, line: str) -> None:
        """See Lines."""
        with self._guard:
            self._waiting += line.encode("ascii") + b"\n"
            with suppress(OSError):
                self._write()

    def settle(self) -> None:
        """See Lines."""
        with self._guard:
            self._write()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """See Lines."""
        with self._guard, suppress(OSError):
            self._write()
        self._file.close()

    def _write(self) -> None:
        """Write the waiting lines. A full disk may take only the first part of a line; a later call appends the rest."""
        while self._waiting:
            del self._waiting[:self._file.write(self._waiting) or 0]


class ShippedLines:
    """Lines in a store that can only put whole files."""

    def __init__(self, store: Store, name: str, *, write_once: bool = False) -> None:
        """Begin the file ``name``.

        Args:
            store: The run folder's.
            name: Of the first segment.
            write_once: Never write a stored segment again, since a writer that is killed may leave a part of it.
        """
        self._store, self._name, self._write_once = store, name, write_once
        self._first, self._shipped = 0, 0
        """Number of the first segment that is not completely in the store, and its bytes that are."""
        self._segments = [bytearray()]
        """That segment and those after it."""
        self._guard, self._shipping, self._over = threading.Lock(), threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._ship, name="sparkring-events", daemon=True)
        self._thread.start()

    def append(self, line: str) -> None:
        """See Lines."""
        with self._guard:
            if len(self._segments[-1]) >= SEGMENT_BYTES:
                self._segments.append(bytearray())
            self._segments[-1] += line.encode("ascii") + b"\n"

    def settle(self) -> None:
        """See Lines."""
        with self._shipping:
            with self._guard:
                if self._write_once and self._segments[-1]:
                    self._segments.append(bytearray())  # what comes later goes there, even if this shipment fails
            whole = True
            while whole:
                with self._guard:
                    data, whole = bytes(self._segments[0]), len(self._segments) > 1
                if len(data) > self._shipped:
                    self._store.put(segment_name(self._name, self._first), data)
                    self._shipped = len(data)
                if whole:
                    with self._guard:
                        del self._segments[0]
                    self._first, self._shipped = self._first + 1, 0

    def close(self) -> None:
        """See Lines."""
        self._over.set()
        self._thread.join()
        with suppress(OSError):
            self.settle()

    def _ship(self) -> None:
        while not self._over.wait(SHIP_ONCE_S * (1 + self._first / SLOWER_AFTER) if self._write_once else SHIP_S):
            with suppress(OSError):  # the storage is away for a while
                self.settle()


def segment_name(name: str, number: int) -> str:
    """Segment ``number`` of the file ``name``; the first one has the file's own name."""
    return name if number == 0 else f"{name.removesuffix('.jsonl')}.{number}.jsonl"


def read_segments(store: Store, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each segment of the file ``name``, in order.

    Raises:
        FileNotFoundError: the first segment does not exist.
    """
    yield name, store.read(name)
    number = 1
    while True:
        segment = segment_name(name, number)
        try:
            data = store.read(segment)
        except FileNotFoundError:
            return
        yield segment, data
        number += 1


class LineTail:
    """Follows one rank's lines while they come."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self._segment, self._offset = 0, 0

    def new_lines(self) -> bytes:
        """The whole lines since the last call; lines that cannot be read now come with a later call."""
        found = b""
        while True:
            try:
                whole = self._store.size(segment_name(self._name, self._segment + 1)) is not None  # if so, this one no longer grows
                data = self._rest()
            except OSError:
                return found
            data = data[:data.rfind(b"\n") + 1]
            self._offset += len(data)
            found += data
            if not whole:
                return found
            self._segment, self._offset = self._segment + 1, 0

    def _rest(self) -> bytes:
        with self._store.open_input(segment_name(self._name, self._segment)) as file:
            file.seek(self._offset)
            data: bytes = file.read()
        return data
