"""Reading ahead: the windows of a rank's lanes, in the order in which steps need them.

    windows of all owned lanes, by the first step that takes a row of each
      -> reader threads read a few row groups at any time
      -> kept in memory up to the rank's budget, beyond it in a file on local disk
      -> lane.take(step) gives the lane's rows of a step, and releases windows that are used up
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sparkring.errors import StorageError
from sparkring.pipelines.data.loading.assemble import LaneRows
from sparkring.pipelines.data.loading.buffered_rows import BufferedRows
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.data.order.row_order import EpochOrder, Window

Tensors = dict[str, BufferedRows]
"""The rows of a window, by tensor name."""


@dataclass(frozen=True)
class Kept:
    """The rows of a window, in memory or on disk."""

    tensors: Tensors
    held: int
    """Bytes of the budget that they take."""


class Budget:
    """Bytes of decoded rows that a rank may keep in memory; further rows go to disk."""

    def __init__(self, limit_bytes: float, folder: Path | None) -> None:
        self._limit, self._folder = limit_bytes, folder
        self._held = 0
        self._guard = threading.Lock()

    def admit(self, tensors: Tensors) -> Kept:
        """Keep these rows, in memory if they fit."""
        size = sum(rows.nbytes for rows in tensors.values())
        with self._guard:
            if self._held + size <= self._limit:
                self._held += size
                return Kept(tensors, size)
        return Kept({name: rows.spill(self._folder) for name, rows in tensors.items()}, 0)

    def has_room(self, size: int) -> bool:
        """Whether ``size`` more bytes would stay in memory."""
        with self._guard:
            return self._held + size <= self._limit

    def release(self, kept: Kept) -> None:
        """Release rows that are used up."""
        with self._guard:
            self._held -= kept.held


@dataclass(frozen=True, kw_only=True)
class ReadAheadConfig:
    """How far to read ahead, and how long to wait."""

    batch_rows: int
    """Rows of a step over all ranks."""
    threads: int
    windows: int
    """Fewest windows being read at a time; up to one per lane if memory allows. Lanes use up their windows at about
    the same time: if readers waited until then, steps would wait for them, and they would idle in between."""
    deadline_s: float
    """Longest time for one row group to arrive, in seconds."""


class Lane:
    """One lane: its windows, and how far its rows have been taken."""

    def __init__(self, order: EpochOrder, lane: int, first_step: int, batch_rows: int, budget: Budget) -> None:
        self._order, self._batch_rows, self._budget = order, batch_rows, budget
        self.lane = lane
        self.offset = order.lane_slice(lane, first_step, batch_rows)[0]
        self._open: deque[tuple[Window, Kept]] = deque()

    def windows(self) -> Iterator[Window]:
        """The windows that are still to be read."""
        return self._order.windows(self.lane, self.offset)

    def put(self, window: Window, kept: Kept) -> None:
        """Add a window that was read."""
        self._open.append((window, kept))

    def skip_to(self, step: int) -> None:
        """Leave out the rows before ``step``; windows that they use up are released."""
        self.offset, _ = self._order.lane_slice(self.lane, step, self._batch_rows)
        while self._open and self._open[0][0].first + self._open[0][0].rows <= self.offset:
            self._budget.release(self._open.popleft()[1])

    def take(self, step: int) -> Iterator[LaneRows]:
        """Yield this lane's rows of ``step``; a window that is used up is released."""
        _, end = self._order.lane_slice(self.lane, step, self._batch_rows)
        while self.offset < end:
            window, kept = self._open[0]
            stop = min(end, window.first + window.rows)
            yield {name: rows.take(self.offset - window.first, stop - window.first) for name, rows in kept.tensors.items()}
            self.offset = stop
            if stop == window.first + window.rows:
                self._open.popleft()
                self._budget.release(kept)


class ReadAhead:
    """Reads the lanes' windows, a few ahead of the step that runs."""

    def __init__(self, reader: SplitReader, order: EpochOrder, lanes: list[Lane], config: ReadAheadConfig, budget: Budget) -> None:
        self._reader, self._order, self._config, self._budget = reader, order, config, budget
        self._lanes = {lane.lane: lane for lane in lanes}
        self._window_bytes = reader.window_bytes()
        self._plan = heapq.merge(*(self._keyed(lane) for lane in lanes), key=lambda item: item[0])
        self._coming: deque[tuple[int, Window, Future[Kept]]] = deque()
        self._pool = ThreadPoolExecutor(config.threads, thread_name_prefix="sparkring-reader")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pool.shutdown(wait=kind is None, cancel_futures=True)  # a read that hangs must not hold back the error that says so

    def deliver(self, step: int) -> None:
        """Hand every window that ``step`` needs to its lane, and start reading later ones."""
        self._request()
        while self._coming and self._coming[0][0] <= step:
            _, window, future = self._coming.popleft()
            self._request()
            self._lanes[window.lane].put(window, self._result(window, future))

    def _keyed(self, lane: Lane) -> Iterator[tuple[int, Window]]:
        return ((self._order.needed_at(window, self._config.batch_rows), window) for window in lane.windows())

    def _request(self) -> None:
        while len(self._coming) < self._config.windows or self._may_read_more():
            item = next(self._plan, None)
            if item is None:
                return
            self._coming.append((*item, self._pool.submit(self._read, item[1])))

    def _may_read_more(self) -> bool:
        """Whether all windows that are being read, and one more, would stay in memory."""
        reading = sum(not future.done() for _, _, future in self._coming)
        return len(self._coming) < len(self._lanes) and self._budget.has_room((reading + 1) * self._window_bytes)

    def _read(self, window: Window) -> Kept:
        return self._budget.admit(self._reader.read(window.group, window.start, window.stop, self._order.shuffle(window)))

    def _result(self, window: Window, future: Future[Kept]) -> Kept:
        try:
            return future.result(timeout=self._config.deadline_s)
        except FutureTimeout:
            file, index = self._reader.place(window.group)
            raise StorageError(f"row group {index} of {file.path} did not arrive within {self._config.deadline_s:g} s; "
                               "check the storage, or raise train.ring.deadline_s.") from None
