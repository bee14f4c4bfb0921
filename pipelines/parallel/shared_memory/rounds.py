"""Rounds in which the ranks of one host show each other a piece of bytes, through memory that all of them map.

    round r     each rank copies its piece into its buffer r % 2 and sets its counter to r;
                once all counters have reached r, each rank may read all buffers

Two buffers suffice without acknowledgements: a rank that fills a buffer for round r + 2 has seen all counters at r + 1, and ranks
set those after they read round r. Rounds are matched by order alone: all ranks of the set take part in the same ones.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from sparkring.errors import DeadlinePassed, RingEnded
from sparkring.pipelines.parallel.shared_memory import peer_processes
from sparkring.pipelines.parallel.shared_memory.memory_fence import fence
from sparkring.pipelines.parallel.shared_memory.peer_processes import PeerProcesses, process_identity
from sparkring.pipelines.parallel.shared_memory.segment import Segment

PIECE_BYTES = 1 << 20
BUFFERS = (PIECE_BYTES, PIECE_BYTES)
"""Bytes of the two buffers in each rank's segment."""
FILLED = 0
"""Row of the counters that is used."""
SPINS = 200
"""Number of looks without sleep before a rank sleeps between looks: shards finish a layer at nearly the same time."""
NAP_S, LONGEST_NAP_S = 0.00005, 0.002


class MemoryRounds:
    """One rank's side of the rounds of a set."""

    def __init__(self, segments: Sequence[Segment], index: int, *, deadline_s: float) -> None:
        """Take the set's segments.

        Args:
            segments: In the order of ranks, each with ``BUFFERS``.
            index: Index of this rank's segment.
            deadline_s: Seconds to wait for another rank.
        """
        self.size, self.index = len(segments), index
        self._segments, self._deadline_s = segments, deadline_s
        self._round = 0
        self._peers = PeerProcesses({})

    def exchange_identities(self) -> None:
        """Exchange the ranks' process identities, so that waiting for a process that has ended fails. This is a round like any other."""
        mine = torch.tensor(process_identity(), dtype=torch.int64).view(torch.uint8)
        identities = [part[:len(mine)].clone() for part in self.exchange(mine, "processes")]
        self._peers = PeerProcesses({segment.rank: part.view(torch.int64).tolist()
                                     for segment, part in zip(self._segments, identities, strict=True)})

    def exchange(self, piece: Tensor, name: str, *, deadline_s: float | None = None) -> list[Tensor]:
        """Show this rank's piece, and see those of all ranks.

        Args:
            piece: Flat bytes, at most ``PIECE_BYTES``.
            name: Only for errors.
            deadline_s: Seconds to wait for the others; default: the set's.
        Returns:
            All ranks' buffers, in the order of ranks, each with a piece at its beginning; valid until the next exchange.
        Raises:
            DeadlinePassed: a rank of the set did not join in time.
            RingEnded: the process of a rank has ended.
        """
        self._round += 1
        number = self._round % 2
        self._segments[self.index].buffers[number][:len(piece)].copy_(piece)
        fence()
        self._segments[self.index].counters[FILLED, number] = self._round
        self._wait(number, name, self._deadline_s if deadline_s is None else deadline_s)
        return [segment.buffers[number] for segment in self._segments]

    def _wait(self, number: int, name: str, deadline_s: float) -> None:
        """Wait until all ranks of the set have filled this round."""
        spins, nap, began = 0, NAP_S, time.monotonic()
        ask_at = began + peer_processes.ASK_AFTER_S
        while late := self._late(number):
            spins += 1
            if spins <= SPINS:
                continue
            now = time.monotonic()
            if now > began + deadline_s:
                raise DeadlinePassed(f"{name}: other ranks did not join within {deadline_s:g} s (ranks {late}); "
                                     "see their last lines, or raise train.ring.deadline_s if they are only slow.", awaited=late)
            if now > ask_at:
                self._require_running(late, number, name)
                ask_at, nap = now + peer_processes.ASK_AFTER_S, LONGEST_NAP_S
            time.sleep(nap)
        fence()

    def _late(self, number: int) -> list[int]:
        """Ranks that have not filled this round."""
        return [segment.rank for segment in self._segments if segment.counters[FILLED, number] < self._round]

    def _require_running(self, late: Sequence[int], number: int, name: str) -> None:
        ended = self._peers.ended(late)
        missed = sorted(ended.intersection(self._late(number)))  # looked at again: a rank may fill its last round right before it ends
        if missed:
            raise RingEnded(name, cause=f"the process of rank {missed[0]} has ended")
