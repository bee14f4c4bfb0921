"""Which rank slows the others down, found from seconds worked by hand."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from sparkring.pipelines.training.events.slow_ranks import Seconds, Slow, SlowRanks, StepSeconds, find_slow, pack, unpack

FOUR = [range(4)]
STEPS = 50
"""So many of EVEN's take more than the seconds of training that a report is about."""
EVEN: Seconds = (0.01, 0.10, 0.05)


def late(*, data: float = 0.01, compute: float = 0.10) -> Seconds:
    """Of a rank that the others wait for, so it waits for nobody."""
    return (data, compute, 0.0)


def found(*seconds: Seconds) -> list[tuple[int, str]]:
    return [(one.slow_rank, one.cause) for one in find_slow(seconds, [range(len(seconds))])]


@pytest.mark.parametrize(("seconds", "expected"), [
    pytest.param([EVEN] * 4, [], id="nobody"),
    pytest.param([EVEN, late(compute=0.30), (0.01, 0.10, 0.20), (0.01, 0.10, 0.20)], [(1, "compute")], id="one that computes longer"),
    pytest.param([(0.01, 0.10, 0.20), late(data=0.30), (0.01, 0.10, 0.20)], [(1, "data")], id="one that waits for its rows"),
    pytest.param([(0.01, 0.10, 0.30)] * 3, [(-1, "network")], id="all that wait, and none is late"),
    pytest.param([(0.01, 0.10, 0.05), late(compute=0.13)], [], id="a little later is not late"),
    pytest.param([(0.0001, 0.001, 0.002), late(data=0.0001, compute=0.003)], [], id="milliseconds are not worth a word"),
    pytest.param([late(compute=9.0)], [], id="one alone waits for nobody"),
])
def test_the_one_that_never_waits_is_late_by_data_or_by_computing(seconds: list[Seconds], expected: list[tuple[int, str]]) -> None:
    assert found(*seconds) == expected


def test_a_rank_is_compared_with_those_that_do_the_same_work() -> None:
    stages = [(0.01, 0.30, 0.00), (0.01, 0.30, 0.00), (0.01, 0.10, 0.20), (0.01, 0.10, 0.20)]
    assert find_slow(stages, [(0, 1), (2, 3)]) == []
    assert [one.slow_rank for one in find_slow(stages, [(0, 2), (1, 3)])] == [0, 1]  # control: as if all did the same
    assert find_slow([(0.0, 0.01, 0.30), (0.0, 0.01, 0.30)], [(0,), (1,)]) == []  # stages wait for each other: that is no network


def reports(*seconds: Seconds, steps: int = STEPS) -> list[tuple[float, ...]]:
    return [(steps, *(steps * value for value in each)) for each in seconds]


def test_a_rank_that_is_slow_now_and_then_is_announced_once_and_so_is_its_recovery() -> None:
    watch = SlowRanks([range(2)])
    slow, even = reports(EVEN, late(compute=0.40)), reports(EVEN, EVEN)
    reported = [[one.over for one in watch.update(part)] for part in (slow, even) * 3]
    assert reported == [[False], [True], [], [], [], []]
    (other_cause,) = watch.update(reports(EVEN, late(data=0.40)))
    assert (other_cause.slow_rank, other_cause.cause) == (1, "data")


def test_each_change_is_reported_once() -> None:
    watch = SlowRanks(FOUR[:1])
    slow = reports(EVEN, EVEN, late(compute=0.40), EVEN)
    assert watch.update(reports(*[EVEN] * 4)) == []
    (news,) = watch.update(slow)
    assert (news.slow_rank, news.cause, news.over) == (2, "compute", False)
    assert watch.update(slow) == []
    (news,) = watch.update(reports(*[EVEN] * 4))
    assert (news.slow_rank, news.over) == (2, True)
    assert watch.update(reports(EVEN, late(data=9.0), EVEN, EVEN, steps=2)) == []  # too few steps show nothing


def test_a_rank_is_reported_only_after_seconds_of_training() -> None:
    watch = SlowRanks([range(2)])
    short = reports((0.001, 0.006, 0.006), (0.001, 0.012, 0.0), steps=100)  # 1.3 s of steps of 13 ms, as on a busy machine
    assert [watch.update(short) for _ in range(3)] == [[], [], []]
    (news,) = watch.update(short)  # after 5.2 s in all it is worth one
    assert news.slow_rank == 1
    even = reports((0.001, 0.012, 0.0), (0.001, 0.006, 0.006), steps=100)  # now one, now the other: nobody is slow over all of it
    assert [SlowRanks([range(2)]).update(part) for part in (short, even)] == [[], []]
    taking_turns = SlowRanks([range(2)])
    assert [taking_turns.update(part) for part in (short, even, short, even)] == [[], [], [], []]


def test_one_bad_step_makes_no_slow_rank_and_several_do() -> None:
    def interval(bad: int) -> tuple[float, ...]:
        seconds = StepSeconds()
        for step in range(STEPS):
            seconds.add(0.01, 5.0 if step < bad else 0.1, 0.0)
        return unpack(pack(seconds.take()))

    assert SlowRanks([range(2)]).update([interval(0), interval(1)]) == []
    assert [one.slow_rank for one in SlowRanks([range(2)]).update([interval(0), interval(3)])] == [1]


def test_what_was_told_is_not_told_again() -> None:
    seconds = StepSeconds()
    for _ in range(STEPS):
        seconds.add(1.0, 2.0, 3.0)
    assert seconds.take() == (STEPS - 1, STEPS - 1, 2.0 * (STEPS - 1), 3.0 * (STEPS - 1))
    assert seconds.take() == (0.0, 0.0, 0.0, 0.0)


def test_steps_too_few_to_judge_are_told_with_the_next_ones() -> None:
    ranks, reported = [StepSeconds(), StepSeconds()], []
    watched = SlowRanks([range(2)])
    for _ in range(2):  # intervals of 4 steps
        for rank, seconds in enumerate(ranks):
            for _ in range(4):
                seconds.add(0.01, 1.0 if rank else 0.2, 0.0)
        reported.append([one.slow_rank for one in watched.update([seconds.take() for seconds in ranks])])
    assert reported == [[], [1]]


def test_an_event_says_it_in_words() -> None:
    slow = Slow(slow_rank=2, cause="data", step_s=0.5, own_s=0.4, others_s=0.1)
    assert Slow.of({"event": "slow", "rank": 0, **asdict(slow)}) == slow
    assert slow.text("node-7").startswith("rank 2 on node-7 slows the others down: it waits for its rows longer, 0.400 s a step against")
    assert "none is late: the network" in Slow(slow_rank=-1, cause="network", step_s=0.5, own_s=0.4, others_s=0.1).text()
