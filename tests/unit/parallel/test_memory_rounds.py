"""Rounds through memory, with the ranks in one process: who speaks and ends is heard, who ends without a word is missed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psutil
import pytest
import torch

from sparkring.errors import RingEnded
from sparkring.pipelines.parallel.shared_memory.rounds import BUFFERS, FILLED, MemoryRounds
from sparkring.pipelines.parallel.shared_memory.segment import Segment, private_segment
from tests.support import seams

DEADLINE_S = 20.0
ROUNDS = 50


def _segments(count: int) -> list[Segment]:
    return [replace(private_segment(BUFFERS, torch.uint8), rank=rank) for rank in range(count)]


class Ending(psutil.Process):
    """A process that is found to have ended when somebody asks, and does one thing more right before."""

    last_act: Callable[[], None]

    def is_running(self) -> bool:
        self.last_act()
        return False


def test_every_round_shows_what_all_ranks_put_into_it() -> None:
    segments = _segments(3)

    def rank(index: int) -> list[list[int]]:
        rounds = MemoryRounds(segments, index, deadline_s=DEADLINE_S)
        turns = (rounds.exchange(torch.full((4,), number * 3 + index, dtype=torch.uint8), "turn") for number in range(ROUNDS))
        return [[int(buffer[3]) for buffer in shown] for shown in turns]

    with ThreadPoolExecutor(3) as pool:
        seen = list(pool.map(rank, range(3)))
    assert seen == [[[number * 3 + index for index in range(3)] for number in range(ROUNDS)]] * 3


@pytest.mark.parametrize("speaks", [True, False], ids=["it fills the round and ends", "the control: it ends without that"])
def test_a_rank_that_ends_right_after_its_last_word_is_not_missed(monkeypatch: pytest.MonkeyPatch, *, speaks: bool) -> None:
    monkeypatch.setattr(seams.PEER_PROCESSES_ASK_AFTER_S, 0.0)
    segments = _segments(2)
    rounds, other = MemoryRounds(segments, 0, deadline_s=DEADLINE_S), Ending()

    def fill() -> None:
        if speaks:
            segments[1].counters[FILLED] = 1

    other.last_act = fill
    rounds._peers.processes = {1: other}
    mine = torch.zeros(1, dtype=torch.uint8)
    if speaks:
        assert len(rounds.exchange(mine, "close")) == 2
    else:
        with pytest.raises(RingEnded, match=r"close: the ring has ended.*the process of rank 1 has ended"):
            rounds.exchange(mine, "close")
