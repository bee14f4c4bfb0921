"""The batches of one rank: its rows of each step, read ahead in the order in which steps need them.

Knows the ring only as two integers (rank, num_ranks); does not communicate.

    reader threads      row groups -> rows of lanes, in their order            read_ahead.py
    assembler thread    a step's rows of all lanes -> tensors, a few steps     assemble.py
                        ahead of the training step
    decoder threads     a batch's encoded cells -> rows
    copier thread       prepares a batch for its step, one step ahead; on GPUs only       one_ahead.py
    this iterator       hands the batches over

One thread assembles, because it copies and little else. A second one gains less than it costs: with more threads than cores,
Python's lock changes hands more often.

Use it in your own loop, or wherever a torch ``IterableDataset`` is expected: ``set_epoch``, ``len``, ``iter``,
``state_dict`` and ``load_state_dict``. A ``DataLoader`` around it must have no workers: each would yield every row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from sparkring.errors import ConfigError
from sparkring.pipelines.data.loading.assemble import Assembler
from sparkring.pipelines.data.loading.one_ahead import one_ahead
from sparkring.pipelines.data.loading.read_ahead import Budget, Lane, ReadAhead, ReadAheadConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.data.order.row_order import EpochOrder, group_rows

MB = 1 << 20
BATCHES_IN_HANDS = 2
"""Batches beside those that wait: one being made, and one in use by the step, or on its way to a GPU, where the step has its copy."""


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
    """Rows of each of its micro-batches, in order; set also if no tensors are read."""
    epoch: int = 0

    def micro_batches(self) -> list[dict[str, Tensor]]:
        """Views of the tensors, one mapping per micro-batch."""
        places = [*accumulate(self.micro_batch_rows, initial=0)]
        return [{name: tensor[first:last] for name, tensor in self.tensors.items()} for first, last in pairwise(places)]


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """Settings of the row order and of reading ahead."""

    batch_rows: int
    """Rows of a step over all ranks."""
    seed: int
    lanes: int
    reader_threads: int = 1
    read_ahead: int = 4
    """Windows to read before a step needs them."""
    assemble_ahead: int = 2
    """Batches to make before a step needs them."""
    memory_mb: float = 1024.0
    """Memory for rows that wait for their step; further rows wait in files on local disk. Memory of reader threads
    (``SplitReader.making_bytes``: two decoded row groups each, four if small or encoded) and of batches is always
    taken."""
    spill_folder: Path | None = None
    """Folder of those files; None: the folder of temporary files (TMPDIR)."""
    deadline_s: float = 120.0
    """Seconds that one row group may take to arrive."""
    micro_batches: int | None = None
    """Micro-batches of a step over all ranks, a multiple of the ranks. Number j holds the rows of the lanes l with
    l % micro_batches == j, and belongs to rank j % num_ranks. None: one per rank."""


Prepare = Callable[[Batch], Callable[[], Batch]]
"""Begins to prepare a batch, e.g. to copy it to a GPU; the result ends that, in the thread that uses the batch."""


class Loader(IterableDataset[Batch]):
    """Iterates over one rank's batches of an epoch, from any step."""

    def __init__(self, reader: SplitReader, config: LoaderConfig, *, rank: int, num_ranks: int, prepare: Prepare | None = None) -> None:
        """Read nothing yet.

        Args:
            reader: Reads the split.
            config: The row order's and reading ahead's settings.
            rank: This rank.
            num_ranks: Ranks that share the rows.
            prepare: Called for each batch, a step before it is used, in a thread of its own; None: nothing is to be prepared.
        """
        self._reader, self._config, self._prepare = reader, config, prepare
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
        """Yield this rank's batches from ``first_step`` to the epoch's end: one per step, even one of no rows.

        If the reader has no tensors, nothing is read, and batches have no rows.

        Raises:
            DatasetError: a file is missing, damaged or too slow; the error names it.
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
            coming = _Making(self._reader, config, order, first_step, parts, stack).batches(first_step, config.assemble_ahead)
            if self._prepare is None:
                for _ in range(first_step, self.steps()):
                    yield next(coming).result()  # held by nobody here while it is in use
            else:
                for ready in stack.enter_context(closing(one_ahead(coming, self._prepare))):
                    yield ready()

    @contextmanager
    def taking(self, epoch: int, *, first_step: int = 0) -> Iterator[Callable[[int], Batch]]:
        """Give the batches of some steps as they are asked for, in ascending order, while the block runs.

        The rows of the others are read and skipped: a rank does not know beforehand which steps it will take. Cells of steps that are not
        taken stay encoded.
        """
        order = self.order(epoch)
        parts = [order.owned_lanes(part, self._num_parts) for part in range(self._rank, self._num_parts, self._num_ranks)]
        with ExitStack() as stack:
            stack.callback(self._reader.buffers.clear)
            making = _Making(self._reader, self._config, order, first_step, parts, stack)

            def take(step: int) -> Batch:
                batch = making.skip_to(step)
                return batch if self._prepare is None else self._prepare(batch)()

            yield take

    # -- as torch's datasets and Lightning expect it ---------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Iterate over ``epoch`` from its first step the next time."""
        self._epoch, self._next_step = epoch, 0

    def __len__(self) -> int:
        """Steps of an epoch."""
        return self.steps()

    def __iter__(self) -> Iterator[Batch]:
        """The remaining batches of the current epoch; at its end the next epoch becomes the current one.

        Raises:
            ConfigError: called in a worker process of a ``DataLoader``: each worker would yield all rows, and none would know the position.
        """
        if get_worker_info() is not None:
            raise _for_workers()
        for batch in self.epoch(self._epoch, first_step=self._next_step):
            self._next_step = batch.step + 1
            yield batch
        self.set_epoch(self._epoch + 1)

    def __getstate__(self) -> NoReturn:
        """Refuse to be pickled, as for a worker process that is not forked (the default from Python 3.14 on)."""
        raise _for_workers()

    def state_dict(self) -> dict[str, Any]:
        """The position, equal on every rank; a ring of another size may load it."""
        config = self._config
        return {"epoch": self._epoch, "step": self._next_step,
                "order": {"seed": config.seed, "lanes": config.lanes, "batch_rows": config.batch_rows}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at the position of a state.

        Raises:
            ConfigError: the state belongs to another row order: rows would come twice or never.
        """
        mine = self.state_dict()["order"]
        if state["order"] != mine:
            raise ConfigError(f"the loader's state is of the order {state['order']}, this loader's is {mine}; give it the same "
                              "seed, lanes and batch_rows (only the number of ranks may change).")
        self._epoch, self._next_step = state["epoch"], state["step"]


class _Making:
    """Makes batches in threads of its own, step after step."""

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
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sparkring-assembler")
        stack.callback(self._thread.shutdown, wait=False, cancel_futures=True)

    def batches(self, first_step: int, ahead: int) -> Iterator[Future[Batch]]:
        """The batches of all steps from the first on, of which ``ahead`` beyond the one that is yielded are begun."""
        coming: deque[Future[Batch]] = deque()
        for step in range(first_step, self._order.steps(self._batch_rows)):
            coming.append(self._thread.submit(self._make, step))
            if len(coming) > ahead:
                yield coming.popleft()
        while coming:
            yield coming.popleft()

    def skip_to(self, step: int) -> Batch:
        """The batch of a step after those before it, which are left out."""
        self._arriving.deliver(step)
        for lane in chain(*self._parts):
            lane.skip_to(step)
        return self._make(step)

    def _make(self, step: int) -> Batch:
        self._arriving.deliver(step)
        parts = [[piece for lane in lanes for piece in lane.take(step)] for lanes in self._parts]
        rows = tuple(sum(len(next(iter(piece.values()))) for piece in pieces) for pieces in parts)
        tensors = self._assembler.join(list(chain(*parts)), epoch=self._order.epoch)
        return Batch(step, tensors, sum(rows), self._order.step_rows(step, self._batch_rows), rows, self._order.epoch)


def _for_workers() -> ConfigError:
    return ConfigError("a loader inside a DataLoader with workers would yield every row once per worker; it reads in threads of its own, "
                       "so iterate over it directly, or set num_workers=0 and batch_size=None.")
