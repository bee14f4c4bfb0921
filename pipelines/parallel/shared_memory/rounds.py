"""Rounds in which the ranks of one host show each other a piece of bytes, through memory that all of them map.

    round r     each rank copies its piece into its buffer r % 2 and says FILLED r;
                once all of the set have said so, each may read all buffers

Two buffers are enough without a word back: who fills a buffer for round r + 2 has seen everybody say FILLED r + 1, and they
said that after reading round r. Order alone tells rounds apart: all ranks of the set take part in the same ones.
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
"""Of bytes, in each rank's segment."""
FILLED = 0
"""Row of the counters; the other rows are not used here."""
LOOKS = 200
"""How often a rank looks before it sleeps between looks: shards finish a layer at nearly the same time."""
NAP_S, LONGEST_NAP_S = 0.00005, 0.002


class MemoryRounds:
    """One rank's side of the rounds of a set."""

    def __init__(self, segments: Sequence[Segment], index: int, *, deadline_s: float) -> None:
        """Take the set's segments in the order of ranks.

        Args:
            segments: Each with ``BUFFERS``.
            place: Of this rank among them.
            deadline_s: Seconds to wait for another rank.
        """
        self.size, self.index = len(segments), index
        self._segments, self._deadline_s = segments, deadline_s
        self._round = 0
        self._peers = PeerProcesses({})

    def exchange_identities(self) -> None:
        """Tell the others which process this is, so that a wait for one that has ended ends too; a round like any other."""
        mine = torch.tensor(process_identity(), dtype=torch.int64).view(torch.uint8)
        identities = [part[:len(mine)].clone() for part in self.exchange(mine, "processes")]
        self._peers = PeerProcesses({segment.rank: part.view(torch.int64).tolist()
                                     for segment, part in zip(self._segments, identities, strict=True)})

    def exchange(self, piece: Tensor, name: str, *, deadline_s: float | None = None) -> list[Tensor]:
        """Show a piece, and see everybody's.

        Args:
            piece: Flat bytes, at most ``PIECE_BYTES``.
            name: For errors only.
            deadline_s: Seconds to wait for the others; default those of the set.
        Returns:
            All ranks' buffers, in the order of ranks, with the pieces at their beginnings; good until this rank's next turn.
        Raises:
            DeadlinePassed: a rank of the set does not come.
            RingEnded: the process of one has ended.
        """
        self._round += 1
        number = self._round % 2
        self._segments[self.index].buffers[number][:len(piece)].copy_(piece)
        fence()
        self._segments[self.index].counters[FILLED, number] = self._round
        self._wait(number, name, self._deadline_s if deadline_s is None else deadline_s)
        return [segment.buffers[number] for segment in self._segments]

    def _wait(self, number: int, name: str, deadline_s: float) -> None:
        """Until all of the set have filled this round."""
        looks, nap, began = 0, NAP_S, time.monotonic()
        ask_at = began + peer_processes.ASK_AFTER_S
        while late := self._late(number):
            looks += 1
            if looks <= LOOKS:
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
        missed = sorted(ended.intersection(self._late(number)))  # looked at once more: who fills its last round may end right after that
        if missed:
            raise RingEnded(name, cause=f"the process of rank {missed[0]} has ended")
