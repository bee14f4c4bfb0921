"""The generators: their lists as drawn, complete at every shape, and refusals with the reason."""

from __future__ import annotations

from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkring.errors import ConfigError
from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.generators.catalogue import SCHEDULE_NAMES, build_schedule
from sparkring.pipelines.parallel.schedules.generators.interleaved import group_micro_batches, interleaved
from sparkring.pipelines.parallel.schedules.generators.one_f_one_b import _textbook as textbook_1f1b
from sparkring.pipelines.parallel.schedules.generators.one_f_one_b import one_f_one_b
from sparkring.pipelines.parallel.schedules.generators.zero_bubble import zero_bubble
from sparkring.pipelines.parallel.schedules.rules import check_schedule
from sparkring.pipelines.parallel.schedules.schedule import COMPUTE, Kind, Schedule, Worker
from sparkring.pipelines.parallel.schedules.simulator import simulate
from sparkring.pipelines.parallel.schedules.transfers import without_transfers
from sparkring.spark_jobs.reporting.schedule_text import draw_schedule

Widths = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@pytest.mark.parametrize(("schedule", "drawn"), [
    pytest.param(build_schedule("gpipe", (1, 1), 3), """
        0: F0 F1 F2 .. .. B0 B1 B2
        1: .. F0 F1 F2 B0 B1 B2 ..
        """, id="gpipe"),
    pytest.param(build_schedule("1f1b", (1, 1), 4), """
        0: F0 F1 .. B0 F2 B1 F3 B2 .. B3
        1: .. F0 B0 F1 B1 F2 B2 F3 B3 ..
        """, id="1f1b"),
    pytest.param(build_schedule("1f1b", (1, 1, 1, 1), 2), """
        0: F0 F1 .. .. .. .. .. B0 .. B1
        1: .. F0 F1 .. .. .. B0 .. B1 ..
        2: .. .. F0 F1 .. B0 .. B1 .. ..
        3: .. .. .. F0 B0 F1 B1 .. .. ..
        """, id="1f1b of fewer micro-batches than stages"),
    pytest.param(build_schedule("1f1b", (2, 2), 4), """
        0.0: F0 F2 .. B0 .. B2
        0.1: F1 F3 .. B1 .. B3
        1.0: .. F0 B0 F2 B2 ..
        1.1: .. F1 B1 F3 B3 ..
        """, id="1f1b of two replicas: two pipelines side by side"),
    pytest.param(build_schedule("1f1b", (2, 1), 4), """
        0.0: F0 == F2 == B0 == .. .. B2 == .. ..
        0.1: F1 == F3 == .. .. B1 == .. .. B3 ==
        1.0: .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. ..
        """, id="1f1b with a stage 0 of two"),
    pytest.param(build_schedule("interleaved", (1, 1), 2, chunks_per_stage=2), """
        0: F0/0 F1/0 F0/2 F1/2 .... B0/2 .... B1/2 B0/0 B1/0
        1: .... F0/1 F1/1 F0/3 B0/3 F1/3 B1/3 B0/1 B1/1 ....
        """, id="interleaved"),
    pytest.param(build_schedule("interleaved", (1,), 2, chunks_per_stage=2), """
        0: F0/0 F0/1 B0/1 F1/0 B0/0 F1/1 B1/1 B1/0
        """, id="interleaved on one stage"),
    pytest.param(build_schedule("zero_bubble", (1, 1, 1), 4), """
        0: F0 F1 F2 .. .. I0 W0 F3 I1 W1 I2 W2 I3 W3
        1: .. F0 F1 .. I0 W0 F2 I1 F3 I2 W1 I3 W2 W3
        2: .. .. F0 I0 W0 F1 I1 F2 I2 F3 I3 W1 W2 W3
        """, id="zero bubble"),
])
def test_the_lists_are_as_drawn(schedule: Schedule, drawn: str) -> None:
    assert draw_schedule(schedule) == dedent(drawn).strip()


@settings(max_examples=60)
@given(name=st.sampled_from(SCHEDULE_NAMES), widths=Widths, micro_batches=st.integers(1, 13), chunks=st.integers(1, 3))
def test_every_schedule_is_complete_and_progresses_at_every_shape(name: str, widths: list[int], micro_batches: int, chunks: int) -> None:
    several = name == "interleaved"
    replicas = [widths[0]] * len(widths) if several else widths
    schedule = build_schedule(name, replicas, micro_batches, chunks_per_stage=chunks if several else 1)
    timeline = simulate(check_schedule(schedule), Costs.equal(schedule.num_chunks))
    assert {worker: [entry.action for entry in entries] for worker, entries in timeline.entries.items()} == {
        worker: list(actions) for worker, actions in schedule.actions.items()}
    check_schedule(without_transfers(schedule))


@settings(max_examples=40)
@given(name=st.sampled_from(["1f1b", "zero_bubble"]), widths=Widths, micro_batches=st.integers(1, 9), data=st.data())
def test_lists_fitted_to_any_costs_still_progress_at_all_others(name: str, widths: list[int], micro_batches: int,
                                                                data: st.DataObject) -> None:
    def costs() -> Costs:
        seconds = st.lists(st.floats(0.01, 5), min_size=len(widths), max_size=len(widths))
        hops = st.lists(st.floats(0, 20), min_size=len(widths) - 1, max_size=len(widths) - 1)
        forward_s, backward_s, input_s, weight_s = (data.draw(seconds) for _ in range(4))
        return Costs(forward_s=forward_s, backward_s=backward_s, input_s=input_s, weight_s=weight_s, hop_forward_s=data.draw(hops),
                     hop_backward_s=data.draw(hops))

    schedule = check_schedule(build_schedule(name, widths, micro_batches, costs=costs()))
    assert simulate(schedule, costs()).makespan_s > 0


def test_without_hops_and_with_equal_widths_costs_change_nothing() -> None:
    costs = Costs.equal(3, forward_s=0.2, backward_s=0.7)
    for generate in (one_f_one_b, zero_bubble):
        assert generate((2, 2, 2), 9, costs=costs) == generate((2, 2, 2), 9)


@pytest.mark.parametrize("name", ["1f1b", "zero_bubble"])
def test_a_longer_warm_up_hides_hops(name: str) -> None:
    # A hop takes half as long as a forward and a backward pass, so that three micro-batches more are on the way from stage 0 and back.
    costs = Costs.equal(4, forward_s=1, backward_s=2, hop_s=1.5)
    textbook, fitted = (simulate(build_schedule(name, (1,) * 4, 24, costs=known), costs) for known in (None, costs))
    assert fitted.compute_s < 0.8 * textbook.compute_s
    assert (textbook.peaks[Worker(0, 0)].micro_batches, fitted.peaks[Worker(0, 0)].micro_batches) == (4, 7)


@pytest.mark.parametrize("replicas", [(2, 1), (1, 2), (1, 2, 1), (2, 1, 3), (1, 4, 2)])
def test_stages_of_unequal_width_keep_each_other_busy(replicas: tuple[int, ...]) -> None:
    """Once the pipeline is full a micro-batch takes little longer than its turn."""
    costs = Costs.balanced(replicas)

    def turn(name: str) -> float:
        few, many = (simulate(build_schedule(name, replicas, m), costs).compute_s for m in (24, 48))
        return (many - few) / 24 / 3

    assert turn("zero_bubble") <= 1.05
    assert turn("1f1b") <= 1.25


def test_the_textbook_lists_would_stall_unequal_widths() -> None:
    replicas, costs = (1, 2, 1), Costs.balanced((1, 2, 1))
    stalled = Schedule("control", replicas=replicas, num_chunks=3, micro_batches=48, actions=textbook_1f1b(replicas, 48, None))
    assert simulate(stalled, costs).compute_s > 1.2 * simulate(build_schedule("1f1b", replicas, 48), costs).compute_s


def test_micro_batches_are_grouped_by_stages_or_a_little_more() -> None:
    groups = [[list(group) for group in group_micro_batches(range(m), 4)] for m in (8, 9, 6, 3)]
    assert groups == [[[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 1, 2, 3, 4], [5, 6, 7, 8]], [[0, 1, 2, 3, 4, 5]], [[0, 1, 2]]]


def test_transfers_stand_beside_what_needs_and_makes_them_and_the_step_ends_the_list() -> None:
    schedule = build_schedule("1f1b", (1, 1), 2)
    assert [" ".join(map(schedule.text, actions)) for actions in schedule.actions.values()] == [
        "F0 SEND_F0 F1 SEND_F1 RECV_B0 B0 RECV_B1 B1 REDUCE STEP",
        "RECV_F0 F0 B0 SEND_B0 RECV_F1 F1 B1 SEND_B1 REDUCE STEP"]


def test_chunks_of_one_worker_hand_over_without_a_transfer() -> None:
    schedule = build_schedule("interleaved", (2,), 4, chunks_per_stage=3)
    assert {action.kind for actions in schedule.actions.values() for action in actions} == {Kind.F, Kind.B, Kind.REDUCE, Kind.STEP}


@settings(max_examples=40)
@given(name=st.sampled_from(["gpipe", "1f1b", "zero_bubble"]), widths=Widths, micro_batches=st.integers(1, 9))
def test_each_send_has_its_receive_at_the_peer(name: str, widths: list[int], micro_batches: int) -> None:
    schedule = build_schedule(name, widths, micro_batches)
    pairs = {Kind.SEND_F: (Kind.RECV_F, 1), Kind.SEND_B: (Kind.RECV_B, -1)}
    sends = {(worker, schedule.peer(action), pairs[action.kind][0], action.chunk + pairs[action.kind][1], action.micro_batch)
             for worker, actions in schedule.actions.items() for action in actions if action.kind in pairs}
    receives = {(schedule.peer(action), worker, *action) for worker, actions in schedule.actions.items() for action in actions
                if action.kind in (Kind.RECV_F, Kind.RECV_B)}
    assert sends == receives
    assert len(sends) == 2 * (len(widths) - 1) * micro_batches


def test_replicas_without_a_micro_batch_still_end_the_step() -> None:
    schedule = check_schedule(build_schedule("1f1b", (3, 1), 2))
    assert [action.kind for action in schedule.actions[Worker(0, 2)]] == [Kind.REDUCE, Kind.STEP]
    assert sum(action.kind in COMPUTE for actions in schedule.actions.values() for action in actions) == 2 * 2 * 2


@pytest.mark.parametrize(("arguments", "said"), [
    pytest.param(("1f1b", (), 4, 1), "at least one stage", id="no stage"),
    pytest.param(("1f1b", (1, 0), 4, 1), r"\[1, 0\] replicas", id="a stage without replicas"),
    pytest.param(("gpipe", (1,), 0, 1), "needs at least 1, and 4 times", id="no micro-batch"),
    pytest.param(("interleaved", (2, 1), 4, 2), "equally many replicas", id="interleaved over unequal replicas"),
    pytest.param(("interleaved", (1, 1), 4, 0), "0 chunks per stage", id="no chunk"),
    pytest.param(("zero_bubble", (1, 1), 4, 2), "only interleaved has several", id="chunks where there are none"),
    pytest.param(("zero-bubble", (1, 1), 4, 1), "did you mean 'zero_bubble'", id="a name with a slip"),
])
def test_a_shape_that_a_schedule_cannot_have_is_refused_with_the_reason(arguments: tuple[str, tuple[int, ...], int, int],
                                                                        said: str) -> None:
    name, replicas, micro_batches, chunks = arguments
    with pytest.raises(ConfigError, match=said):
        build_schedule(name, replicas, micro_batches, chunks_per_stage=chunks)


def test_one_chunk_a_stage_is_plain_1f1b() -> None:
    assert interleaved((1, 1), 5, chunks_per_stage=1).actions == one_f_one_b((1, 1), 5).actions
