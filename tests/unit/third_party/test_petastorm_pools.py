"""Petastorm's pools lose no rows where all work is handed out just when the reader asks whether there is more."""

from __future__ import annotations

from typing import Any

import pytest
from petastorm.workers_pool import EmptyResultError
from petastorm.workers_pool.dummy_pool import DummyPool
from petastorm.workers_pool.thread_pool import ThreadPool
from petastorm.workers_pool.ventilator import Ventilator
from petastorm.workers_pool.worker_base import WorkerBase


class Echo(WorkerBase):  # type: ignore[misc, unused-ignore]
    def process(self, *args: Any, **kwargs: Any) -> None:
        self.publish_func(kwargs["item"])


class InTheMiddle(Ventilator):  # type: ignore[misc, unused-ignore]
    """Hands out its only item at the moment when it is asked whether it has handed out all: the worst interleaving, every time."""

    def __init__(self, pool: Any) -> None:
        super().__init__(pool.ventilate)
        self._handed_out = False

    def start(self) -> None:
        """Nothing begins here."""

    def processed_item(self) -> None:
        """Nothing waits for it."""

    def stop(self) -> None:
        """Nothing runs."""

    def completed(self) -> bool:
        if not self._handed_out:
            self._handed_out = True
            self._ventilate_fn(item="row")
        return True


@pytest.mark.parametrize("make", [lambda: ThreadPool(1), DummyPool], ids=["threads", "no threads"])
def test_what_is_handed_out_between_two_questions_is_not_lost(make: Any) -> None:
    pool = make()
    pool.start(Echo, ventilator=InTheMiddle(pool))
    assert pool.get_results() == "row"
    with pytest.raises(EmptyResultError):
        pool.get_results()
    pool.stop()
    pool.join()
