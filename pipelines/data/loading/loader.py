"""The batches of one rank: its rows of each step, read ahead in the order in which the steps will need them.

Knows the ring only as two integers (rank, num_ranks); talks to no other rank.

    reader threads      row groups -> blocks, a lane's rows in its order       read_ahead.py
    taker thread        a step's pieces of all lanes, step after step
    assembler threads   a step's pieces -> tensors, a few steps ahead of the   assemble.py
                        one that trains
    this iterator       hands the batches over

Works in a loop of one's own, and where a torch ``IterableDataset`` is expected: ``set_epoch``, ``len``, ``iter``,
``state_dict`` and ``load_state_dict``. A ``DataLoader`` around it has no workers of its own: they would give every row several times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from sparkring.errors import ConfigError
from sparkring.pipelines.data.loading.assemble import Assembler, LaneRows
from sparkring.pipelines.data.loading.read_ahead import Budget, Lane, ReadAhead, ReadAheadConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.data.order.row_order import EpochOrder, group_rows

MB = 1 << 20
BATCHES_IN_HANDS = 2
"""Batches beside those that wait: one that is made, and one that the step uses."""


@dataclass(frozen=True)
class Batch:
    """One rank's rows of one step."""

    step: int
    tensors: dict[str, Tensor]
    """Tensor name -> (rows, ...); rows may be 0."""
    rows: int
    """This rank's rows."""
    global_rows: int
    """Rows of the step over all ranks."""
    micro_batch_rows: tuple[int, ...] = ()
    """Rows of each of its micro-batches, which lie one behind the other; told also where no tensors are read."""
    epoch: int = 0

    def micro_batches(self) -> list[dict[str, Tensor]]:
        """The tensors of each micro-batch: views."""
        places = [*accumulate(self.micro_batch_rows, initial=0)]
        return [{name: tensor[first:last] for name, tensor in self.tensors.items()} for first, last in pairwise(places)]


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
    assemble_ahead: int = 2
    """Batches that are made before a step needs them, several at once where there are several reader threads."""
    memory_mb: float = 1024.0
    """Memory for rows that are read and that wait; those that exceed it wait in files on local disk. What a reader thread has in hands
    (``SplitReader.making_bytes``: two decoded row groups, of small or encoded ones four) and the batches are taken in any case."""
    spill_folder: Path | None = None
    """Where that file goes; None: where temporary files go (TMPDIR)."""
    deadline_s: float = 120.0
    """Seconds that one row group may take to arrive."""
    micro_batches: int | None = None
    """Parts of a step over all ranks, a multiple of the ranks: part j holds the rows of the lanes l with l % micro_batches == j, and
    belongs to rank j % num_ranks. None: one a rank."""


class Loader(IterableDataset[Batch]):
    """Iterates over one rank's batches of an epoch, from any step on."""

    def __init__(self, reader: SplitReader, config: LoaderConfig, *, rank: int, num_ranks: int) -> None:
        self._reader, self._config = reader, config
        self._rank, self._num_ranks = rank, num_ranks
        self._group_rows = group_rows([file.row_groups for file in reader.files])
        self._num_parts = config.micro_batches or num_ranks
        assert self._num_parts % num_ranks == 0, f"{self._num_parts} micro-batches over {num_ranks} ranks"
        self._epoch, self._next_step = 0, 0

    def steps(self) -> int:
        """Steps of an epoch."""
        return self.order(0).steps(self._config.batch_rows)

    def order(self, epoch: int) -> EpochOrder:
        """The row order of ``epoch``."""
        return EpochOrder(self._group_rows, self._config.seed, epoch, self._config.lanes)

    def epoch(self, epoch: int, *, first_step: int = 0) -> Generator[Batch]:
        """Yield this rank's batches from ``first_step`` to the epoch's end; one a step, also where it has no rows.

        A reader of no tensors reads nothing and makes batches of no rows.

        Raises:
            DatasetError: a file is gone, damaged or too slow; it is named.
        """
        order, config = self.order(epoch), self._config
        parts = [order.owned_lanes(part, self._num_parts) for part in range(self._rank, self._num_parts, self._num_ranks)]
        if not self._reader.specs:
            for step in range(first_step, self.steps()):
                rows = tuple(order.rows_of(lanes, step, config.batch_rows) for lanes in parts)
                yield Batch(step, {}, 0, order.step_rows(step, config.batch_rows), rows, epoch)
            return
        with ExitStack() as stack:
            stack.callback(self._reader.buffers.clear)
            making = _Making(self._reader, config, order, first_step, parts, stack)
            coming: deque[Future[Future[Batch]]] = deque()
            for step in range(first_step, order.steps(config.batch_rows)):
                coming.append(making.begin(step))
                if len(coming) > config.assemble_ahead:
                    yield coming.popleft().result().result()
            while coming:
                yield coming.popleft().result().result()

    # -- as torch's datasets and Lightning expect it ---------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Iterate over ``epoch`` from its first step the next time."""
        self._epoch, self._next_step = epoch, 0

    def __len__(self) -> int:
        """Steps of an epoch."""
        return self.steps()

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the current epoch from where it was left; at its end the next epoch becomes the current one.

        Raises:
            ConfigError: a worker process of a ``DataLoader`` iterates: each would give all rows, and none would know the position.
        """
        if get_worker_info() is not None:
            raise ConfigError("a loader inside a DataLoader with workers would give every row once a worker; it reads in threads of its "
                              "own, so iterate over it as it is, or give num_workers=0 and batch_size=None.")
        for batch in self.epoch(self._epoch, first_step=self._next_step):
            self._next_step = batch.step + 1
            yield batch
        self.set_epoch(self._epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """The whole position, the same on every rank: it may be loaded by a ring of another size."""
        config = self._config
        return {"epoch": self._epoch, "step": self._next_step,
                "order": {"seed": config.seed, "lanes": config.lanes, "batch_rows": config.batch_rows}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was taken.

        Raises:
            ConfigError: the state belongs to another order: rows would come twice or never.
        """
        mine = self.state_dict()["order"]
        if state["order"] != mine:
            raise ConfigError(f"the loader's state is of the order {state['order']}, this loader's is {mine}; give it the same "
                              "seed, lanes and batch_rows (only the number of ranks may change).")
        self._epoch, self._next_step = state["epoch"], state["step"]


class _Making:
    """Makes batches in threads of its own: takes the pieces step after step, assembles several steps at once."""

    def __init__(self, reader: SplitReader, config: LoaderConfig, order: EpochOrder, first_step: int, parts: Sequence[range],
                 stack: ExitStack) -> None:
        self._order, self._batch_rows = order, config.batch_rows
        step_rows = sum(order.rows_of(lanes, 0, config.batch_rows) for lanes in parts)
        batches = (config.assemble_ahead + BATCHES_IN_HANDS) * reader.batch_bytes(step_rows)
        budget = Budget(config.memory_mb * MB - config.reader_threads * reader.making_bytes() - batches, config.spill_folder)
        self._parts = [[Lane(order, lane, first_step, config.batch_rows, budget) for lane in lanes] for lanes in parts]
        ahead = ReadAheadConfig(batch_rows=config.batch_rows, threads=config.reader_threads, windows=config.read_ahead,
                                deadline_s=config.deadline_s)
        self._arriving = stack.enter_context(ReadAhead(reader, order, list(chain(*self._parts)), ahead, budget))
        decoders = ThreadPoolExecutor(config.reader_threads, thread_name_prefix="sparkring-decoder") if config.reader_threads > 1 else None
        if decoders:
            stack.callback(decoders.shutdown, wait=False, cancel_futures=True)
        self._assembler = Assembler(reader.specs, reader.fields, seed=config.seed, augmented=reader.split == "train",
                                    buffers=reader.buffers, pool=decoders)
        self._taker = ThreadPoolExecutor(1, thread_name_prefix="sparkring-taker")
        self._assemblers = ThreadPoolExecutor(config.reader_threads, thread_name_prefix="sparkring-assembler")
        for pool in (self._assemblers, self._taker):
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)

    def begin(self, step: int) -> Future[Future[Batch]]:
        """Make the batch of ``step``; steps follow each other."""
        return self._taker.submit(self._take, step)

    def _take(self, step: int) -> Future[Batch]:
        self._arriving.deliver(step)
        parts = [[piece for lane in lanes for piece in lane.take(step)] for lanes in self._parts]
        return self._assemblers.submit(self._assemble, step, parts)

    def _assemble(self, step: int, parts: list[list[LaneRows]]) -> Batch:
        rows = tuple(sum(len(next(iter(piece.values()))) for piece in pieces) for pieces in parts)
        tensors = self._assembler.join(list(chain(*parts)), epoch=self._order.epoch)
        return Batch(step, tensors, sum(rows), self._order.step_rows(step, self._batch_rows), rows, self._order.epoch)
