"""A rank's interface to Horovod for everything but gradients: start, agree, gather, broadcast, stop.

The caller names every operation: Horovod numbers unnamed ones per process, so ranks with different histories would never match.
Bytes travel as tensors, and nothing that arrives is unpickled. Ranks of one host that sum gradients in shared memory exchange
everything else there, too (shared_memory/exchange.py).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

import horovod.torch as hvd
import torch
from torch import Tensor

from sparkring.errors import RingError
from sparkring.pipelines.parallel.collectives.horovod_handles import ring_errors, wait_results
from sparkring.pipelines.parallel.collectives.sets_across_hosts import require_startable
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.mesh import Ranks, canonical_sets, process_sets
from sparkring.pipelines.parallel.shared_memory.exchange import MemoryExchange, open_exchange
from sparkring.pipelines.parallel.shared_memory.named_files import remove_abandoned

RING_CYCLE_MS = 5
"""Horovod's cycle time where gradients pass through it."""
IDLE_CYCLE_MS = 100
"""Horovod's cycle time while nothing is asked of it: where gradients do not pass through it, and, with our build of Horovod, where all
ranks ask for each sum and so begin its cycle at once. In each cycle its threads wake and talk to each other, on cores that compute:
with one rank per core, cycles of 5 ms made a step of 0.17 s 8 to 20 % longer, and one of 0.6 s on two hosts 8 % (docs/log)."""
MESSAGE_CYCLE_MS = 1
"""Horovod's cycle time where messages between stages pass through it: each message waits for a cycle."""
FUSION_BYTES = 0
"""Bytes up to which Horovod fuses tensors that are ready at once: it fuses none. The order in which it sums depends on the position in
the fused tensor, so with Horovod's 128 MB the bits of a gradient would depend on which buckets met; messages would also wait longer."""
PIECE_BYTES = 1 << 30
"""Most bytes of one operation: Horovod counts elements in int32, and each byte is an element."""


class Communicator:
    """Horovod, started for one rank. Use as a context manager; leaving it normally waits for the others."""

    def __init__(self, context: RankContext, *, extra_sets: Iterable[Ranks] = (), messages_by_horovod: bool = False,
                 gradients_beside: bool = False) -> None:
        """Join the ring.

        Args:
            context: This rank's identity in it.
            extra_sets: Process sets beyond those that the hosts require, the same on every rank, in any order.
            messages_by_horovod: Whether messages between stages will pass through Horovod, which then gets a short cycle.
            gradients_beside: Whether gradients pass by Horovod, and nothing in a step through it: then it gets a long one.
        Raises:
            LayoutRefused: the installed Horovod cannot start one of the sets.
            RingError: Horovod and the launcher disagree on rank or size.
        """
        self.context = context
        self._openings = count()
        extra_sets = tuple(extra_sets)
        require_startable(extra_sets, context.hosts, horovod=Path(hvd.__file__).parents[1])
        self._sets: dict[Ranks, hvd.ProcessSet] = {
            ranks: hvd.ProcessSet(list(ranks)) for ranks in canonical_sets((*process_sets(context.hosts), *extra_sets), size=context.size)}
        for name, value in _tuning(context, messages_by_horovod=messages_by_horovod, all_ask=gradients_beside or not self._sets,
                                   seldom=gradients_beside or context.sums_in_memory).items():
            os.environ.setdefault(name, value)
        hvd.init(process_sets=list(self._sets.values()))
        if (hvd.rank(), hvd.size()) != (context.rank, context.size):
            raise RingError(f"Horovod says rank {hvd.rank()} of {hvd.size()}, the launcher said {context.rank} of {context.size}; "
                            "unset HOROVOD_RANK and HOROVOD_SIZE in the executors' environment.")
        if context.shared_memory and context.rank == context.local_ranks[0]:
            remove_abandoned()
        self._exchange: MemoryExchange | None = None  # until it is open, ranks agree by Horovod
        self._exchange = open_exchange(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.barrier("close")  # a rank that left while others still work would tear down their ring
            hvd.shutdown()

    def has_process_set(self, ranks: Ranks) -> bool:
        """Whether these ranks have a process set."""
        return len(ranks) == self.context.size or ranks in self._sets

    def process_set(self, ranks: Ranks) -> hvd.ProcessSet:
        """The process set of ``ranks``: one that the mesh listed, or the global one."""
        return hvd.global_process_set if len(ranks) == self.context.size else self._sets[ranks]

    def next_serial(self) -> int:
        """The next serial number, the same on all ranks that ask in the same order; it makes names unique."""
        return next(self._openings)

    def sum(self, tensor: Tensor, *, name: str) -> Tensor:
        """Elementwise sum over all ranks, as a new tensor on the CPU; int64 wraps around."""
        if self._exchange is not None:
            total, *others = (part.view(tensor.shape) for part in self._exchanged(tensor.cpu(), name, None))
            for other in others:
                total += other
            return total
        with ring_errors(name):
            handle = hvd.allreduce_async(tensor.cpu(), name=name, op=hvd.Sum)
        return self._finish(handle, name)

    def gather(self, tensor: Tensor, *, name: str, deadline_s: float | None = None) -> Tensor:
        """All ranks' tensors, concatenated along the first axis; their lengths may differ, and may be 0."""
        if self._exchange is not None:
            return torch.cat([part.view(-1, *tensor.shape[1:]) for part in self._exchanged(tensor.cpu(), name, deadline_s)])
        return self._gather_by_horovod(tensor, name, deadline_s)

    def gather_bytes(self, data: bytes, *, name: str) -> list[bytes]:
        """All ranks' ``data``, by rank; any may be empty."""
        if self._exchange is not None:
            return [part.numpy().tobytes() for part in self._exchanged(_flat(data), name, None)]
        return self.gather_bytes_off_thread(data, name=name, deadline_s=self.context.deadline_s)

    def gather_bytes_off_thread(self, data: bytes, *, name: str, deadline_s: float) -> list[bytes]:
        """As ``gather_bytes``, for threads beside the training thread: Horovod matches operations by name, not by order."""
        sizes = self._gather_by_horovod(torch.tensor([len(data)]), f"{name}.sizes", deadline_s).tolist()
        share = max(1, PIECE_BYTES // self.context.size)
        parts: list[list[bytes]] = [[] for _ in sizes]
        for start in range(0, max(sizes), share):
            everything = self._gather_by_horovod(_flat(data[start:start + share]), f"{name}.{start}", deadline_s)
            pieces = everything.split([min(max(size - start, 0), share) for size in sizes])
            for part, piece in zip(parts, pieces, strict=True):
                part.append(piece.numpy().tobytes())
        return [b"".join(part) for part in parts]

    def broadcast_bytes(self, data: bytes, *, name: str) -> bytes:
        """Rank 0's ``data``, on every rank; the others' is ignored."""
        if self._exchange is not None:
            return self._exchanged(_flat(data if self.context.rank == 0 else b""), name, None)[0].numpy().tobytes()
        length = int(self._broadcast(torch.tensor([len(data)], dtype=torch.int64), name=f"{name}.length")[0])
        pieces = []
        for start in range(0, length, PIECE_BYTES):
            end = min(start + PIECE_BYTES, length)
            piece = _flat(data[start:end]) if self.context.rank == 0 else torch.empty(end - start, dtype=torch.uint8)
            pieces.append(self._broadcast(piece, name=f"{name}.{start}").numpy().tobytes())
        return b"".join(pieces)

    def require_equal(self, data: bytes, *, what: str) -> str:
        """Check that all ranks hold the same bytes; returns their SHA-256.

        Raises:
            RingError: some ranks differ; they are named, on every rank.
        """
        digest = hashlib.sha256(data).digest()
        digests = self.gather(torch.frombuffer(bytearray(digest), dtype=torch.uint8)[None], name=f"equal.{what}")
        other = [rank for rank in range(self.context.size) if digests[rank].numpy().tobytes() != digests[0].numpy().tobytes()]
        if other:
            raise RingError(f"{what} of ranks {other} differs from rank 0's; all ranks must hold the same bytes. "
                            "Check that all executors run the same versions of torch and sparkring.")
        return digest.hex()

    def agree(self, *, mine: bool, name: str) -> bool:
        """Whether every rank says yes."""
        return int(self.sum(torch.tensor([int(mine)]), name=name)[0]) == self.context.size

    def barrier(self, name: str) -> None:
        """Wait until every rank is here."""
        self.sum(torch.zeros(1), name=f"barrier.{name}")

    def _exchanged(self, tensor: Tensor, name: str, deadline_s: float | None) -> list[Tensor]:
        """All ranks' tensors, flat and of this one's dtype, by rank; through memory."""
        assert self._exchange is not None
        mine = tensor.contiguous().view(-1).view(torch.uint8)
        parts = self._exchange.gather(mine, name, deadline_s=deadline_s or self.context.deadline_s)
        return [part.view(tensor.dtype) for part in parts]

    def _gather_by_horovod(self, tensor: Tensor, name: str, deadline_s: float | None) -> Tensor:
        with ring_errors(name):
            handle = hvd.allgather_async(tensor.cpu().contiguous(), name=name)
        return self._finish(handle, name, deadline_s)

    def _broadcast(self, tensor: Tensor, *, name: str) -> Tensor:
        with ring_errors(name):
            handle = hvd.broadcast_async(tensor, root_rank=0, name=name)
        return self._finish(handle, name)

    def _finish(self, handle: int, name: str, deadline_s: float | None = None) -> Tensor:
        (result,) = wait_results([handle], what=name, deadline_s=deadline_s or self.context.deadline_s)
        return result


def _tuning(context: RankContext, *, messages_by_horovod: bool, all_ask: bool, seldom: bool) -> dict[str, str]:
    """Horovod's cycle and fusion.

    A cycle begins when the last rank of the ring begins it. Where some ranks do not ask for each sum (sums of a process set), they must not
    pause for long. Only our build knows ``HOROVOD_CYCLE_TIME_IDLE`` (third_party/horovod).

    On GPUs they stay Horovod's own, 1 ms and 128 MB, which were chosen for NCCL: its threads take no cores from a step there, and no
    promise is broken, since NCCL chooses the order of a sum anyway (docs/reference/guarantees.md).
    """
    if context.device != "cpu":
        return {}
    cycle_ms = MESSAGE_CYCLE_MS if messages_by_horovod else IDLE_CYCLE_MS if seldom else RING_CYCLE_MS
    idle = {"HOROVOD_CYCLE_TIME_IDLE": str(IDLE_CYCLE_MS)} if all_ask and not messages_by_horovod else {}
    return {"HOROVOD_FUSION_THRESHOLD": str(FUSION_BYTES), "HOROVOD_CYCLE_TIME": str(cycle_ms), **idle}


def _flat(data: bytes) -> Tensor:
    """Bytes as a tensor that owns its memory."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
