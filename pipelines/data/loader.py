"""The batches of one rank: its rows of each step, read ahead in the order in which the steps will need them.

Knows the ring only as two integers (rank, num_ranks); talks to no other rank. Memory: about lanes / num_ranks windows
open, plus the few that are read ahead.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from sparkring.errors import DatasetError
from sparkring.pipelines.data.order import EpochOrder, Window, group_rows
from sparkring.pipelines.data.reader import SplitReader

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """One rank's rows of one step."""

    step: int
    tensors: Tensors
    """Tensor name -> (rows, ...); rows may be 0."""
    rows: int
    """This rank's rows."""
    global_rows: int
    """Rows of the step over all ranks."""


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """What the order and the reading ahead depend on."""

    batch_rows: int
    """Rows of a step over all ranks."""
    seed: int
    lanes: int
    reader_threads: int = 1
    read_ahead: int = 4
    """Windows read before a step needs them."""
    deadline_s: float = 120.0
    """Seconds that one row group may take to arrive."""


class Loader:
    """Iterates over one rank's batches of an epoch, from any step on."""

    def __init__(self, reader: SplitReader, config: LoaderConfig, *, rank: int, num_ranks: int) -> None:
        self._reader, self._config = reader, config
        self._rank, self._num_ranks = rank, num_ranks
        self._group_rows = group_rows([file.row_groups for file in reader.files])

    def steps(self) -> int:
        """Steps of an epoch."""
        return self.order(0).steps(self._config.batch_rows)

    def order(self, epoch: int) -> EpochOrder:
        """The row order of ``epoch``."""
        return EpochOrder(self._group_rows, self._config.seed, epoch, self._config.lanes)

    def epoch(self, epoch: int, *, first_step: int = 0) -> Iterator[Batch]:
        """Yield this rank's batches from ``first_step`` to the epoch's end; one a step, also where it has no rows.

        Raises:
            DatasetError: a file is gone, damaged or too slow; it is named.
        """
        order, config = self.order(epoch), self._config
        lanes = [_Lane(order, lane, first_step, config.batch_rows) for lane in order.owned_lanes(self._rank, self._num_ranks)]
        with _ReadAhead(self._reader, order, lanes, config) as arriving:
            for step in range(first_step, order.steps(config.batch_rows)):
                arriving.deliver(step)
                parts = [part for lane in lanes for part in lane.take(step)]
                tensors = self._join(parts)
                rows = sum(len(next(iter(part.values()))) for part in parts)
                yield Batch(step, tensors, rows, order.step_rows(step, config.batch_rows))

    def _join(self, parts: list[Tensors]) -> Tensors:
        if not parts:
            return self._no_rows()
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _no_rows(self) -> Tensors:
        """Tensors of zero rows in the shapes and types of a batch."""
        return {spec.name: torch.empty((0, len(spec.fields)) if spec.stacked else (0,), dtype=getattr(torch, spec.dtype))
                for spec in self._reader.specs}


class _Lane:
    """One lane's open windows and how far it has been read out."""

    def __init__(self, order: EpochOrder, lane: int, first_step: int, batch_rows: int) -> None:
        self._order, self._batch_rows = order, batch_rows
        self.lane = lane
        self.offset = order.lane_slice(lane, first_step, batch_rows)[0]
        self._open: deque[tuple[Window, Tensors]] = deque()

    def windows(self) -> Iterator[Window]:
        """The windows still to come."""
        return self._order.windows(self.lane, self.offset)

    def put(self, window: Window, tensors: Tensors) -> None:
        """Take in a window that was read."""
        self._open.append((window, tensors))

    def take(self, step: int) -> Iterator[Tensors]:
        """Yield views of this lane's rows of ``step``; a window that is used up is let go."""
        _, end = self._order.lane_slice(self.lane, step, self._batch_rows)
        while self.offset < end:
            window, tensors = self._open[0]
            stop = min(end, window.first + window.rows)
            yield {name: tensor[self.offset - window.first:stop - window.first] for name, tensor in tensors.items()}
            self.offset = stop
            if stop == window.first + window.rows:
                self._open.popleft()


class _ReadAhead:
    """Reads the lanes' windows in the order of the steps that need them, a few ahead of the step that runs."""

    def __init__(self, reader: SplitReader, order: EpochOrder, lanes: list[_Lane], config: LoaderConfig) -> None:
        self._reader, self._order, self._config = reader, order, config
        self._lanes = {lane.lane: lane for lane in lanes}
        self._plan = heapq.merge(*(self._keyed(lane) for lane in lanes), key=lambda item: item[0])
        self._coming: deque[tuple[int, Window, Future[Tensors]]] = deque()
        self._pool = ThreadPoolExecutor(config.reader_threads, thread_name_prefix="sparkring-reader")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pool.shutdown(wait=kind is None, cancel_futures=True)  # a read that hangs must not hold back the error that says so

    def deliver(self, step: int) -> None:
        """Hand every window that ``step`` needs to its lane, and keep ``read_ahead`` more on their way."""
        self._request()
        while self._coming and self._coming[0][0] <= step:
            _, window, future = self._coming.popleft()
            self._request()
            self._lanes[window.lane].put(window, self._result(window, future))

    def _keyed(self, lane: _Lane) -> Iterator[tuple[int, Window]]:
        return ((self._order.needed_at(window, self._config.batch_rows), window) for window in lane.windows())

    def _request(self) -> None:
        while len(self._coming) < self._config.read_ahead:
            item = next(self._plan, None)
            if item is None:
                return
            self._coming.append((*item, self._pool.submit(self._read, item[1])))

    def _read(self, window: Window) -> Tensors:
        return self._reader.read(window.group, window.start, window.stop, self._order.shuffle(window))

    def _result(self, window: Window, future: Future[Tensors]) -> Tensors:
        try:
            return future.result(timeout=self._config.deadline_s)
        except FutureTimeout:
            file, index = self._reader.place(window.group)
            raise DatasetError(f"row group {index} of {file.path} did not arrive within {self._config.deadline_s:g} s; "
                               "check the storage, or raise train.ring.deadline_s.") from None
