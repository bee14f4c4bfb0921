"""Slots of messages: never two of one name on their way at once, at any timing, and no more slots than that takes."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkring.errors import ScheduleStuck
from sparkring.pipelines.parallel.schedule import Kind, Schedule, Worker, parse_action
from sparkring.pipelines.parallel.schedule_costs import Costs
from sparkring.pipelines.parallel.schedule_slots import slot_window
from sparkring.pipelines.parallel.schedules.catalogue import SCHEDULE_NAMES, build_schedule
from sparkring.pipelines.parallel.simulator import Timeline, simulate


def clashes(timeline: Timeline, window: int) -> int:
    """Messages sent while another of the same edge and slot has not been received."""
    schedule = timeline.schedule
    steps = {Kind.SEND_F: (Kind.RECV_F, 1), Kind.SEND_B: (Kind.RECV_B, -1)}
    received = {entry.action: entry.end_s for entries in timeline.entries.values() for entry in entries}
    spans = defaultdict(list)
    for worker, entries in timeline.entries.items():
        for entry in entries:
            if entry.action.kind in steps:
                kind, step = steps[entry.action.kind]
                arrival = entry.action._replace(kind=kind, chunk=entry.action.chunk + step)
                edge = (worker, schedule.peer(entry.action), arrival.chunk, kind, entry.action.micro_batch % window)
                spans[edge].append((entry.start_s, received[arrival]))
    return sum(later[0] < earlier[1] - 1e-9 for edge in spans.values() for earlier, later in pairwise(edge))


@pytest.mark.parametrize(("name", "replicas", "window"), [
    pytest.param("gpipe", (1, 1), 16, id="all of gpipe's may be on their way"),
    pytest.param("1f1b", (1, 1), 2, id="1f1b of two stages"),
    pytest.param("1f1b", (1, 1, 1, 1), 4, id="1f1b of four stages"),
    pytest.param("zero_bubble", (1, 1, 1, 1), 4, id="zero bubble as 1f1b"),
    pytest.param("1f1b", (1,), 1, id="nothing is sent"),
])
def test_the_window_is_what_a_sender_may_run_ahead(name: str, replicas: tuple[int, ...], window: int) -> None:
    assert slot_window(build_schedule(name, replicas, 16)) == window


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(SCHEDULE_NAMES), widths=st.lists(st.integers(1, 3), min_size=2, max_size=3), micro_batches=st.integers(1, 12),
       data=st.data())
def test_no_two_messages_of_one_name_are_on_their_way_at_once(name: str, widths: list[int], micro_batches: int,
                                                              data: st.DataObject) -> None:
    several = name == "interleaved"
    schedule = build_schedule(name, [widths[0]] * len(widths) if several else widths, micro_batches, chunks_per_stage=2 if several else 1)
    chunks = schedule.num_chunks

    def seconds(count: int) -> list[float]:
        return data.draw(st.lists(st.sampled_from([0.01, 1.0, 30.0]), min_size=count, max_size=count))

    costs = Costs(forward_s=seconds(chunks), backward_s=seconds(chunks), input_s=seconds(chunks), weight_s=seconds(chunks),
                  hop_forward_s=seconds(chunks - 1), hop_backward_s=seconds(chunks - 1))
    assert clashes(simulate(schedule, costs), slot_window(schedule)) == 0


@pytest.mark.parametrize(("name", "replicas", "chunks"), [
    pytest.param("gpipe", (1, 1), 1, id="gpipe"), pytest.param("1f1b", (1, 1, 1), 1, id="1f1b"),
    pytest.param("zero_bubble", (1, 1, 1), 1, id="zero bubble"), pytest.param("interleaved", (1, 1, 1), 2, id="interleaved"),
])
def test_with_one_slot_less_two_would_meet_when_hops_are_slow(name: str, replicas: tuple[int, ...], chunks: int) -> None:
    schedule = build_schedule(name, replicas, 12, chunks_per_stage=chunks)
    slow = simulate(schedule, Costs.equal(schedule.num_chunks, hop_s=1000.0))
    window = slot_window(schedule)
    assert clashes(slow, window) == 0 < clashes(slow, window - 1)


def test_lists_that_wait_for_each_other_have_no_window() -> None:
    lists = ("F0 RECV_B0 B0 SEND_F0", "RECV_F0 F0 B0 SEND_B0")
    stuck = Schedule("stuck", replicas=(1, 1), num_chunks=2, micro_batches=1, actions={
        Worker(stage, 0): tuple(parse_action(text, own_chunk=stage) for text in words.split()) for stage, words in enumerate(lists)})
    with pytest.raises(ScheduleStuck, match=r"worker 0\.0 at RECV_B0 waits for its sender; worker 1\.0 at RECV_F0"):
        slot_window(stuck)
