"""Hierarchical sums: shared memory inside a host, and a ring of one leader per host between hosts.

The buffers lie in shared memory, so gradients are written where they are summed. Each rank of a host sums its own share of each
buffer over the host's ranks. Ranks show their progress by counters, not by messages:

    FILLED    this rank's values of the buffer are in
    SUMMED    this rank's share is summed (after all are FILLED)   one host: written to every rank's buffer; done
    REDUCED   the leader's buffer holds the sum over all hosts     several:  written to the leader's buffer, which the ring
                                                                             sums between hosts; the others copy it
Sums are taken in the order of ranks, so every run gives the same bits. Buffers may become ready in any order. A rank works on
all open buffers whenever it fills one, and while it waits in ``finish``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import IntEnum

import horovod.torch as hvd
import torch
from torch import Tensor

from sparkring.errors import DeadlinePassed, RingEnded
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.horovod_handles import ring_errors
from sparkring.pipelines.parallel.mesh import Ranks
from sparkring.pipelines.parallel.shared_memory.memory_fence import fence
from sparkring.pipelines.parallel.shared_memory.peer_processes import ASK_AFTER_S, PeerProcesses
from sparkring.pipelines.parallel.shared_memory.segment import Segment

SLICE = 1 << 15
"""Elements summed at a time: two slices of float64 fit a core's cache, so the copy that follows reads no memory."""
NAP_S = 0.00005
"""Seconds between looks at the others' counters."""


class Phase(IntEnum):
    """Progress of a rank with a buffer; also the row of its counter."""

    FILLED = 0
    SUMMED = 1
    REDUCED = 2


class HierarchicalReducer:
    """Sums through shared memory inside the host, and by the leaders' ring between hosts."""

    def __init__(self, communicator: Communicator, segments: Sequence[Segment], ring: Ranks, peers: PeerProcesses) -> None:
        """Use the segments that ``open_gradient_reducer`` has opened.

        Args:
            communicator: The joined ring.
            segments: Segments of the group's ranks on this host, ascending.
            ring: The group's first rank on each host.
            peers: Processes of the group's ranks on this host.
        """
        context = communicator.context
        self._communicator, self._segments, self._peers = communicator, segments, peers
        self._index = [segment.rank for segment in segments].index(context.rank)
        self._mine = segments[self._index]
        self._leader = segments[0]
        self._ring = communicator.process_set(ring) if len(ring) > 1 else None
        self._round = 1
        self._open: dict[int, Phase] = {}
        self._handles: dict[int, int] = {}
        self.description = "shared memory" + (f", ring of {len(ring)} hosts" if self._ring else "")

    @property
    def buffers(self) -> Sequence[Tensor]:
        """This rank's flat tensors."""
        return self._mine.buffers

    def ready(self, index: int) -> None:
        """Show the host's ranks that this buffer is full, and advance all open buffers."""
        self._publish(Phase.FILLED, index)
        self._open[index] = Phase.FILLED
        self._advance()

    def finish(self) -> None:
        """Work and wait until every buffer holds its sum and no other rank needs this rank's buffers.

        Raises:
            DeadlinePassed: a rank did not join in time.
            RingEnded: a rank of the host has ended.
        """
        began = time.monotonic()
        until, ask_at = began + self._communicator.context.deadline_s, began + ASK_AFTER_S
        while self._open:
            if not self._advance():
                now = time.monotonic()
                if now > until:
                    raise self._lateness()
                if now > ask_at:
                    self._require_running()
                    ask_at = now + ASK_AFTER_S
                time.sleep(NAP_S)
        self._round += 1

    def close(self) -> None:
        """Drop the mappings; the last rank to do so frees the memory."""
        self._segments = ()
        del self._mine, self._leader

    def _advance(self) -> bool:
        """Take each open buffer as far as possible without waiting; return whether anything moved."""
        moved = False
        for index in list(self._open):
            while self._step(index):
                moved = True
        return moved

    def _step(self, index: int) -> bool:
        """Take one buffer one phase further; return False if it has to wait or is done."""
        phase = self._open.get(index)
        if phase is Phase.FILLED and self._all_at(Phase.FILLED, index):
            self._sum_share(index)
            self._publish(Phase.SUMMED, index)
            self._open[index] = Phase.SUMMED
            return True
        if phase is Phase.SUMMED:
            return self._after_sum(index)
        if phase is Phase.REDUCED and self._all_at(Phase.REDUCED, index):
            del self._open[index]  # the host has copied the leader's buffer: it may be filled again
            return True
        return False

    def _after_sum(self, index: int) -> bool:
        if self._ring is None:
            if not self._all_at(Phase.SUMMED, index):
                return False
            del self._open[index]
            return True
        return self._sum_between_hosts(index) if self._mine is self._leader else self._copy_from_leader(index)

    def _sum_between_hosts(self, index: int) -> bool:
        """On the leader: sum the buffer between hosts once all shares are in, then show it to the host."""
        with ring_errors("the ring between hosts"):
            if index not in self._handles:
                if not self._all_at(Phase.SUMMED, index):
                    return False
                self._handles[index] = hvd.allreduce_async_(
                    self._mine.buffers[index], name=f"gradients.leaders.{index}", op=hvd.Sum, process_set=self._ring)
            if not hvd.poll(self._handles[index]):
                return False
            hvd.synchronize(self._handles.pop(index))
        self._publish(Phase.REDUCED, index)
        self._open[index] = Phase.REDUCED
        return True

    def _copy_from_leader(self, index: int) -> bool:
        """On the other ranks: copy the leader's buffer once it is reduced."""
        if self._leader.counters[Phase.REDUCED, index] < self._round:
            return False
        fence()
        self._mine.buffers[index].copy_(self._leader.buffers[index])
        self._publish(Phase.REDUCED, index)
        del self._open[index]
        return True

    def _sum_share(self, index: int) -> None:
        """Sum this rank's share of a buffer over the host, in slices that stay in the cache."""
        first, last = owned_range(len(self._mine.buffers[index]), self._index, len(self._segments))
        all_buffers = [segment.buffers[index] for segment in self._segments]
        targets = all_buffers[1:] if self._ring is None else []
        for start in range(first, last, SLICE):
            stop = min(start + SLICE, last)
            total = all_buffers[0][start:stop]
            for other in all_buffers[1:]:
                torch.add(total, other[start:stop], out=total)
            for target in targets:
                target[start:stop].copy_(total)

    def _all_at(self, phase: Phase, index: int) -> bool:
        if any(segment.counters[phase, index] < self._round for segment in self._segments):
            return False
        fence()
        return True

    def _publish(self, phase: Phase, index: int) -> None:
        fence()  # values become visible before the counter does
        self._mine.counters[phase, index] = self._round

    def _awaited(self) -> list[int]:
        """The ranks of this host that the first open buffer waits for; none if it waits for the ring between hosts."""
        index, phase = next(iter(self._open.items()))
        awaited = self._segments
        if phase is Phase.SUMMED and self._ring is not None and self._mine is not self._leader:
            awaited, phase = [self._leader], Phase.REDUCED
        return [segment.rank for segment in awaited if segment.counters[phase, index] < self._round]

    def _require_running(self) -> None:
        ended = self._peers.ended(self._awaited())
        missed = sorted(ended.intersection(self._awaited()))  # looked at again: a rank may publish right before it ends
        if missed:
            raise RingEnded("the sum of gradients", cause=f"the process of rank {missed[0]} has ended")

    def _lateness(self) -> DeadlinePassed:
        index, phase = next(iter(self._open.items()))
        late = self._awaited()
        rank, deadline = self._communicator.context.rank, self._communicator.context.deadline_s
        whom = f"ranks {late} of its host" if late else "the ring between hosts"
        return DeadlinePassed(
            f"rank {rank} waited {deadline:g} s for {whom} in gradient buffer {index} of round {self._round} ({phase.name}); "
            "see those ranks' last lines, or raise train.ring.deadline_s if they are only slow.", awaited=late)


def owned_range(length: int, index: int, count: int) -> tuple[int, int]:
    """The elements [first, last) of ``length`` that part ``index`` of ``count`` sums; parts begin on 64-byte lines."""
    size = -(-length // (count * 16)) * 16
    return min(index * size, length), min((index + 1) * size, length)
