"""One rank's part in dealt steps, with a strategy that only asks for steps: when a segment ends, and what counts as done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from sparkring.pipelines.training.checkpoints.documents import Position
from sparkring.pipelines.training.checkpoints.pace import Pace
from sparkring.pipelines.training.loop.dealt_steps import DealtSteps
from sparkring.pipelines.training.loop.saver import Saver
from sparkring.pipelines.training.strategies.relaxed.stale_sync import StaleSyncStrategy
from sparkring.pipelines.training.strategies.signals import Signals

STEPS = 10
AT = Position(epoch=1, steps_done=40)


class _Asking:
    """Deals a segment's steps to workers that do nothing, until it ends; stands for the strategy on the dealer's rank."""

    works = False

    def __init__(self, votes: Sequence[float] = (0.0, 0.0)) -> None:
        self._votes, self.given_out = votes, 0

    @contextmanager
    def segment(self, first: int, last: int, *, ends: Callable[..., bool], stops: Callable[[], bool]) -> Iterator[None]:
        self.given_out = first
        while self.given_out < last and not ends(0, self._votes, self.given_out):
            self.given_out += 1
        yield

    def taken(self, votes: Callable[[], Sequence[float]]) -> Iterator[int]:
        return iter(())


def _segment(strategy: _Asking, saver: Any, *, save: Callable[[bool], bool] = bool) -> None:
    setup: Any = SimpleNamespace(
        steps_per_epoch=STEPS, events=SimpleNamespace(write=lambda *_, **__: None),
        signals=SimpleNamespace(now=lambda *, due=False: Signals(save=float(save(due)))),
        communicator=SimpleNamespace(gather=lambda tensor, **_: tensor))
    watchers: Any = SimpleNamespace(saver=saver, proof=SimpleNamespace(seal=lambda: None))
    DealtSteps(setup, strategy, watchers, AT).advance(AT)  # type: ignore[arg-type]


def _idle_saver() -> Any:
    return SimpleNamespace(count=lambda _: None, wants=lambda _: False, due=lambda _: False, writing=False)


def test_a_segment_has_at_least_one_step_also_where_a_rank_is_asked_to_stop_before_it() -> None:
    """A checkpoint after none would have the steps of the one that the epoch before ended with, and replace it."""
    stopped = _Asking(votes=(1.0, 0.0))
    _segment(stopped, _idle_saver())
    assert stopped.given_out == 1
    due = _Asking()
    _segment(due, _idle_saver(), save=lambda _: True)  # by the clock: checkpoint_s
    assert due.given_out == 1


def test_steps_count_as_they_are_given_out_and_none_is_while_a_failure_would_cost_too_many() -> None:
    """``checkpoint_steps: 6``, and a checkpoint at the beginning of the segment that takes 0.2 s to write."""
    held, done, ends = list[int](), list[int](), time.monotonic() + 0.2
    saver: Any = Saver.__new__(Saver)

    class Writer:
        writing = True

        def hold(self, patience_s: float) -> float:
            held.append(saver._done)
            self.writing = False
            return ends - time.monotonic()

    saver.__dict__.update(_decides=True, _pace=Pace(6, start=AT.steps_done), _done=AT.steps_done, _waited_s=0.0, _writer=Writer())
    saver._pace.committed(AT.steps_done, steps=2, held=False)
    noted = saver.count

    def count(steps_done: int) -> None:
        done.append(steps_done)
        noted(steps_done)

    saver.count = count
    _segment(_Asking(), saver, save=lambda _: False)
    assert done[:3] == [40, 41, 42]
    assert held == [46], "not a step more than a failure may cost is under way beyond the last checkpoint"
    assert saver._waited_s > 0, "so the pace learns that it was waited for"


def test_weights_in_channels_last_are_compared_and_sent() -> None:
    network, sent = torch.nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last), list[bytes]()
    communicator = SimpleNamespace(require_equal=lambda data, **_: sent.append(data), broadcast_bytes=lambda data, **_: data,
                                   context=SimpleNamespace(rank=0))
    rank: Any = SimpleNamespace(model=network, communicator=communicator, roles=SimpleNamespace(apart=True), _hosts=False, _worker=None)
    before = network.weight.detach().clone()
    StaleSyncStrategy.require_equal(rank)
    with StaleSyncStrategy.segment(rank, 0, 1, ends=lambda *_: False, stops=lambda: False):
        pass
    assert sent
    assert torch.equal(network.weight, before)
