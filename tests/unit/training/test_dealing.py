"""The dealer: each step once, in order; no update staler than the bound; and something can always happen."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable

import pytest

from sparkring.pipelines.training.parameter_server.dealing import Apply, Dealer, Leave, Take


def _play(steps: int, *, workers: int, bound: int, seconds: Callable[[int], float],
          ends_after: int | None = None) -> tuple[list[int], list[Apply], list[int]]:
    """Play workers that compute for some time; returns the steps in the order taken, the updates applied, and where the workers left."""
    dealer = Dealer(0, steps, bound=bound)
    taken, applied, left, clock = list[int](), list[Apply](), list[int](), list[tuple[float, int]]()
    for worker in range(workers):
        dealer.ask(worker)
    now = 0.0
    while len(left) < workers:
        for answer in dealer.answers():
            if isinstance(answer, Take):
                taken.append(answer.step)
                heapq.heappush(clock, (now + seconds(answer.worker), answer.worker))
                if ends_after is not None and len(taken) == ends_after:
                    dealer.stop()
            elif isinstance(answer, Apply):
                applied.append(answer)
                dealer.ask(answer.worker)
            else:
                left.append(answer.end)
        if len(left) < workers:
            assert clock, "every worker waits for another: nothing would ever happen again"
            now, worker = heapq.heappop(clock)
            dealer.ready(worker)
    return taken, applied, left


@pytest.mark.parametrize("workers", [1, 2, 5, 9])
@pytest.mark.parametrize("bound", [0, 1, 3, 8, 40])
def test_over_ten_thousand_updates_with_random_delays_no_update_is_staler_than_the_bound(workers: int, bound: int) -> None:
    generator = random.Random(17 * workers + bound)
    taken, applied, _ = _play(10_000, workers=workers, bound=bound, seconds=lambda _: generator.expovariate(1))
    assert taken == list(range(10_000))
    assert [update.number for update in applied] == list(range(10_000))
    found = max(update.staleness for update in applied)
    assert found <= bound
    if workers > 1 and bound <= 8:
        assert found == bound, "the bound is used"


def test_control_without_a_bound_updates_get_staler_than_that() -> None:
    _, applied, _ = _play(10_000, workers=5, bound=10**9, seconds=lambda worker: 20.0 if worker == 0 else 1.0)
    assert max(update.staleness for update in applied) > 40


def test_with_bound_0_one_step_is_under_way_at_a_time_however_many_workers_there_are() -> None:
    dealer = Dealer(0, 3, bound=0)
    for worker in range(3):
        dealer.ask(worker)
    assert list(dealer.answers()) == [Take(0, step=0, version=0)]
    dealer.ready(0)
    assert list(dealer.answers()) == [Apply(0, number=0, staleness=0), Take(1, step=1, version=1)]


def test_an_update_waits_if_another_one_would_become_too_stale_by_it() -> None:
    dealer = Dealer(0, 9, bound=2)
    for worker in (0, 1):
        dealer.ask(worker)
    assert list(dealer.answers()) == [Take(0, step=0, version=0), Take(1, step=1, version=0)]
    for number in (0, 1):  # worker 0 is slow: worker 1 may pass it twice
        dealer.ready(1)
        dealer.ask(1)
        assert list(dealer.answers()) == [Apply(1, number=number, staleness=0), Take(1, step=number + 2, version=number + 1)]
    dealer.ready(1)
    assert list(dealer.answers()) == [], "a third time would make the update of worker 0 three stale"
    dealer.ready(0)
    assert list(dealer.answers()) == [Apply(0, number=2, staleness=2), Apply(1, number=3, staleness=1)]


def test_a_slow_worker_takes_fewer_steps_and_does_not_hold_back_the_others_within_the_bound() -> None:
    shares = Counter[int]()

    def seconds(worker: int) -> float:
        shares[worker] += 1
        return 4.0 if worker == 0 else 1.0

    _play(1_000, workers=4, bound=12, seconds=seconds)  # while it computes, each of three others passes four times
    assert shares[0] == pytest.approx(1_000 / 13, rel=0.05)
    assert min(shares[worker] for worker in (1, 2, 3)) == pytest.approx(4_000 / 13, rel=0.05)


def test_once_stopped_no_step_is_given_out_and_all_leave_at_the_same_one() -> None:
    taken, applied, left = _play(1_000, workers=4, bound=3, seconds=lambda worker: 1.0 + worker, ends_after=10)
    assert (len(taken), len(applied), left) == (10, 10, [10] * 4)
    assert Leave(0, 10).end == 10
