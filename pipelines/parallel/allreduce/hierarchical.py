"""Hierarchical sums: shared memory inside a host, and sums of one leader per host between hosts.

The buffers lie in shared memory, so gradients are written where they are summed. Each rank of a host sums its own share of each
buffer over the host's ranks. Ranks show their progress by counters, not by messages:

    FILLED    this rank's values of the buffer are in
    SUMMED    this rank's share is summed (after all are FILLED)   one host: written to every rank's buffer; done
    REDUCED   the leader's buffer holds the sum over all hosts     several:  written to the leader's buffer, which is
                                                                             summed between hosts; the others copy it
Sums are taken in the order of ranks, so every run gives the same bits. Buffers may become ready in any order. A rank works on
all open buffers whenever it fills one, and while it waits in ``finish``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

from sparkring.errors import DeadlinePassed, RingEnded
from sparkring.pipelines.parallel.allreduce.between import Awaited, SumsBetween
from sparkring.pipelines.parallel.allreduce.rounds import part
from sparkring.pipelines.parallel.context import RankContext
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
    """Sums through shared memory inside the host, and by the leaders between hosts."""

    def __init__(self, context: RankContext, segments: Sequence[Segment], peers: PeerProcesses, *, one_host: bool,
                 between: SumsBetween | None, description: str) -> None:
        """Use the segments that ``open_gradient_reducer`` has opened.

        Args:
            context: This rank's.
            segments: Segments of the group's ranks on this host, ascending.
            peers: Processes of the group's ranks on this host.
            one_host: Whether all of the group's ranks are here.
            between: On a leader of several hosts, the sums between them.
            description: The way in which sums are made.
        """
        self.description = description
        self._context, self._segments, self._peers, self._between = context, segments, peers, between
        self._index = [segment.rank for segment in segments].index(context.rank)
        self._mine = segments[self._index]
        self._leader = segments[0]
        self._one_host = one_host
        self._round = 1
        self._open: dict[int, Phase] = {}
        self._between_hosts: set[int] = set()
        """On a leader, the buffers that are being summed between hosts."""

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
        until, ask_at = began + self._context.deadline_s, began + ASK_AFTER_S
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
        if self._between is not None:
            self._between.close()

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
        if self._one_host:
            if not self._all_at(Phase.SUMMED, index):
                return False
            del self._open[index]
            return True
        return self._copy_from_leader(index) if self._between is None else self._sum_between_hosts(self._between, index)

    def _sum_between_hosts(self, between: SumsBetween, index: int) -> bool:
        """On the leader: sum the buffer between hosts once all shares are in, then show it to the host."""
        if index not in self._between_hosts:
            if not self._all_at(Phase.SUMMED, index):
                return False
            between.start(index, self._mine.buffers[index])
            self._between_hosts.add(index)
        if not between.done(index):
            return False
        self._between_hosts.remove(index)
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
        first, last = part(len(self._mine.buffers[index]), self._index, len(self._segments))
        all_buffers = [segment.buffers[index] for segment in self._segments]
        targets = all_buffers[1:] if self._one_host else []
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
        """The ranks of this host that the first open buffer waits for; none if it waits for other hosts."""
        index, phase = next(iter(self._open.items()))
        awaited = self._segments
        if phase is Phase.SUMMED and not self._one_host and self._between is None:
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
        awaited = Awaited(f"ranks {late} of its host", tuple(late))
        if not late and self._between is not None:
            awaited = self._between.awaited()
        return DeadlinePassed(
            f"rank {self._context.rank} waited {self._context.deadline_s:g} s for {awaited.who} in gradient buffer {index} of round "
            f"{self._round} ({phase.name}); see those ranks' last lines, or raise train.ring.deadline_s if they are only slow.",
            awaited=awaited.ranks)
