"""The simulator: closed forms of bubble and memory, waits worked by hand, and lists that cannot continue."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import closed_forms
from sparkring.conf.schema import Recompute
from sparkring.errors import ScheduleStuck
from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.generators.catalogue import SCHEDULE_NAMES, build_schedule
from sparkring.pipelines.parallel.schedules.memory import peak_activations
from sparkring.pipelines.parallel.schedules.schedule import Schedule, Worker, parse_action
from sparkring.pipelines.parallel.schedules.simulator import simulate
from sparkring.pipelines.parallel.schedules.transfers import without_transfers

STAGES, MICRO_BATCHES, REPLICAS = st.integers(1, 6), st.integers(1, 20), st.integers(1, 3)
SECONDS = st.floats(0.1, 3)


def schedule_of(*lists: str, replicas: tuple[int, ...] = (1, 1), micro_batches: int = 2) -> Schedule:
    """One list a worker, as text."""
    empty = Schedule("by hand", replicas=replicas, num_chunks=len(replicas), micro_batches=micro_batches, actions={})
    return replace(empty, actions={worker: tuple(parse_action(text, own_chunk=worker.stage) for text in words.split())
                                   for worker, words in zip(empty.workers, lists, strict=True)})


@settings(max_examples=40)
@given(name=st.sampled_from(["gpipe", "1f1b"]), stages=STAGES, own=MICRO_BATCHES, replicas=REPLICAS, forward_s=SECONDS, backward_s=SECONDS)
def test_the_bubble_of_gpipe_and_1f1b_is_the_closed_form(name: str, stages: int, own: int, replicas: int, forward_s: float,
                                                         backward_s: float) -> None:
    schedule = build_schedule(name, (replicas,) * stages, own * replicas)
    timeline = simulate(schedule, Costs.equal(stages, forward_s=forward_s, backward_s=backward_s))
    assert timeline.bubble == pytest.approx(closed_forms.pipeline_bubble(stages, own))
    assert list(timeline.bubbles.values()) == pytest.approx([timeline.bubble] * stages * replicas)


@settings(max_examples=30)
@given(stages=st.integers(1, 5), rounds=st.integers(1, 4), chunks=st.integers(1, 4), replicas=REPLICAS, forward_s=SECONDS,
       backward_s=SECONDS)
def test_the_bubble_and_memory_of_interleaved_are_the_closed_forms(stages: int, rounds: int, chunks: int, replicas: int, forward_s: float,
                                                                   backward_s: float) -> None:
    own = rounds * stages
    schedule = build_schedule("interleaved", (replicas,) * stages, own * replicas, chunks_per_stage=chunks)
    timeline = simulate(schedule, Costs.equal(stages * chunks, forward_s=forward_s, backward_s=backward_s))
    assert timeline.bubble == pytest.approx(closed_forms.pipeline_bubble(stages, own, chunks_per_stage=chunks))
    expected = [closed_forms.interleaved_in_flight(stages, own, stage, chunks_per_stage=chunks) if chunks > 1
                else closed_forms.one_f_one_b_in_flight(stages, own, stage) for stage in range(stages)]
    assert [timeline.peaks[Worker(stage, 0)].micro_batches for stage in range(stages)] == expected


@settings(max_examples=40)
@given(stages=st.integers(2, 6), micro_batches=MICRO_BATCHES, chunks=st.integers(2, 3))
def test_interleaving_never_lengthens_the_step_whatever_the_number_of_micro_batches(stages: int, micro_batches: int, chunks: int) -> None:
    plain = simulate(build_schedule("1f1b", (1,) * stages, micro_batches), Costs.equal(stages, forward_s=chunks, backward_s=2 * chunks))
    cut = simulate(build_schedule("interleaved", (1,) * stages, micro_batches, chunks_per_stage=chunks), Costs.equal(stages * chunks))
    assert cut.compute_s <= plain.compute_s + 1e-9


@settings(max_examples=40)
@given(stages=STAGES, more=st.integers(0, 14), replicas=REPLICAS, seconds=st.lists(st.integers(1, 9), min_size=3, max_size=3))
def test_zero_bubble_takes_as_long_as_its_paper_says_and_no_more_memory_than_1f1b(stages: int, more: int, replicas: int,
                                                                                  seconds: list[int]) -> None:
    weight_s, *others = sorted(seconds)
    forward_s = input_s = float(max(others))
    own = stages + more
    costs = replace(Costs.equal(stages, forward_s=forward_s), input_s=(input_s,) * stages, weight_s=(float(weight_s),) * stages,
                    backward_s=(input_s + weight_s,) * stages)
    timeline = simulate(build_schedule("zero_bubble", (replicas,) * stages, own * replicas), costs)
    assert timeline.compute_s == pytest.approx(closed_forms.zero_bubble_makespan(
        stages, own, forward_s=forward_s, input_s=input_s, weight_s=weight_s))
    plain = simulate(build_schedule("1f1b", (replicas,) * stages, own * replicas), costs)
    assert timeline.compute_s <= plain.compute_s
    assert max(timeline.peaks.values()) == max(plain.peaks.values())


@settings(max_examples=40)
@given(stages=STAGES, micro_batches=MICRO_BATCHES)
def test_micro_batches_in_flight_are_the_closed_forms(stages: int, micro_batches: int) -> None:
    costs = Costs.equal(stages)
    peaks = {name: simulate(build_schedule(name, (1,) * stages, micro_batches), costs).peaks for name in ("gpipe", "1f1b")}
    assert [peaks["gpipe"][Worker(stage, 0)] for stage in range(stages)] == [(closed_forms.gpipe_in_flight(micro_batches),) * 2] * stages
    assert [peaks["1f1b"][Worker(stage, 0)] for stage in range(stages)] == [
        (closed_forms.one_f_one_b_in_flight(stages, micro_batches, stage),) * 2 for stage in range(stages)]


@settings(max_examples=40)
@given(name=st.sampled_from(SCHEDULE_NAMES), stages=st.integers(1, 4), width=REPLICAS, micro_batches=st.integers(1, 9),
       hop_s=st.floats(0, 3), blocks=st.booleans())
def test_lists_with_and_without_transfers_take_equally_long(name: str, stages: int, width: int, micro_batches: int, hop_s: float,
                                                            blocks: bool) -> None:
    replicas = (width,) * stages if name == "interleaved" else (width, *(1,) * (stages - 1))
    schedule = build_schedule(name, replicas, micro_batches, chunks_per_stage=2 if name == "interleaved" else 1)
    costs = replace(Costs.equal(schedule.num_chunks, hop_s=hop_s), send_blocks=blocks)
    full, bare = simulate(schedule, costs), simulate(without_transfers(schedule), costs)
    assert full.compute_s == pytest.approx(bare.compute_s)
    assert list(full.bubbles.values()) == pytest.approx(list(bare.bubbles.values()))


def test_waits_for_hops_are_as_worked_by_hand() -> None:
    #   0.0   F0 0-1, F1 1-2                                B0 7.5-9.5          B1 10.5-12.5
    #   1.0          F0 1.5-2.5, B0 2.5-4.5, F1 4.5-5.5, B1 5.5-7.5       forth 0.5, back 3
    costs = replace(Costs.equal(2), hop_forward_s=(0.5,), hop_backward_s=(3.0,))
    timeline = simulate(build_schedule("1f1b", (1, 1), 2), costs)
    computed = [[(entry.start_s, entry.end_s) for entry in entries if len(entry.action.text(with_chunk=False)) == 2]
                for entries in timeline.entries.values()]
    assert computed == [[(0, 1), (1, 2), (7.5, 9.5), (10.5, 12.5)], [(1.5, 2.5), (2.5, 4.5), (4.5, 5.5), (5.5, 7.5)]]
    assert timeline.compute_s == 12.5
    assert timeline.bubbles == {Worker(0, 0): pytest.approx(1 - 6 / 12.5), Worker(1, 0): pytest.approx(1 - 6 / 12.5)}
    received = [entry for entry in timeline.entries[Worker(0, 0)] if entry.action.kind == "RECV_B"]
    assert [(entry.start_s, entry.end_s) for entry in received] == [(2, 7.5), (9.5, 10.5)]  # a wait begins when its worker gets there


def test_a_sender_that_blocks_computes_nothing_meanwhile() -> None:
    costs = replace(Costs.equal(2), hop_forward_s=(0.5,), hop_backward_s=(3.0,), send_blocks=True)
    timeline = simulate(build_schedule("1f1b", (1, 1), 2), costs)
    starts = [entry.start_s for entry in timeline.entries[Worker(0, 0)] if entry.action.kind == "F"]
    assert starts == [0, 1.5]


def test_sending_and_receiving_take_their_own_workers_time() -> None:
    #   0.0   F0 0-1, send -1.25, F1 -2.25, send -2.5      receive 5-5.5, B0 -7.5       receive 8.75-9.25, B1 -11.25
    #   1.0   receive 1.25-1.75, F0 -2.75, B0 -4.75, send -5, receive -5.5, F1 -6.5, B1 -8.5, send -8.75
    costs = replace(Costs.equal(2), send_s=(0.25,), receive_s=(0.5,))
    timeline = simulate(build_schedule("1f1b", (1, 1), 2), costs)
    own = {entry.action.text(with_chunk=False): (entry.start_s, entry.end_s) for entry in timeline.entries[Worker(0, 0)]}
    assert own["SEND_F1"] == (2.25, 2.5)
    assert own["RECV_B0"] == (2.5, 5.5)
    assert (own["B0"], own["B1"]) == ((5.5, 7.5), (9.25, 11.25))
    assert timeline.compute_s == 11.25
    assert simulate(build_schedule("1f1b", (1, 1), 2), Costs.equal(2)).compute_s == 9


def test_reduce_waits_for_the_last_replica_of_its_stage_alone() -> None:
    costs = replace(Costs.equal(2), reduce_s=(5.0, 7.0), step_s=(1.0, 2.0))
    timeline = simulate(build_schedule("gpipe", (2, 1), 3), costs)
    ends = {str(worker): [(entry.start_s, entry.end_s) for entry in entries[-2:]] for worker, entries in timeline.entries.items()}
    #   0.0   F0 0-1, F2 1-2, B0 6-8, B2 10-12          0.1   F1 0-1, B1 8-10         1.0   F0 1-2, F1 2-3, F2 3-4, B 4-6, 6-8, 8-10
    assert ends == {"0.0": [(12, 17), (17, 18)], "0.1": [(12, 17), (17, 18)], "1.0": [(10, 17), (17, 19)]}
    assert timeline.makespan_s == 19
    assert timeline.compute_s == 12


@pytest.mark.parametrize(("checkpoint", "name", "expected_bytes", "makespan_s"), [
    pytest.param("never", "gpipe", 3 * 100, 9, id="all activations of all micro-batches"),
    pytest.param("always", "gpipe", 3 * 10 + 100, 12, id="all inputs, and the activations of one; each forward pass twice"),
    pytest.param("except_last", "gpipe", 2 * 10 + 100 + 100, 11, id="the last one's activations beside"),
    pytest.param("never", "zero_bubble", 100, 9, id="freed by halves"),
])
def test_bytes_follow_the_model(checkpoint: Recompute, name: str, expected_bytes: float, makespan_s: float) -> None:
    costs = replace(Costs.equal(1), activation_bytes=(100,), stash_bytes=(10,), weight_bytes=(40,), checkpoint=(checkpoint,))
    timeline = simulate(build_schedule(name, (1,), 3), costs)
    assert timeline.peaks[Worker(0, 0)].num_bytes == expected_bytes
    assert timeline.compute_s == makespan_s


def test_what_weights_need_stays_from_i_to_w() -> None:
    costs = replace(Costs.equal(1), activation_bytes=(100,), weight_bytes=(40,))
    late = schedule_of("F0 I0 F1 I1 F2 I2 W0 W1 W2", replicas=(1,), micro_batches=3)
    assert peak_activations(late, costs, Worker(0, 0)) == (3, 2 * 40 + 100)


@pytest.mark.parametrize(("lists", "said"), [
    pytest.param(("F0 B0 F1 B1", "F1 B1 F0 B0"),
                 ["worker 0.0 at B0 waits for worker 1.0's B0", "worker 1.0 at F1 waits for worker 0.0's F1"],
                 id="each waits for the other"),
    pytest.param(("F0 SEND_F0 RECV_B0 B0 F1 SEND_F1 RECV_B1 B1", "RECV_F0 F0 RECV_F1 F1 B0 SEND_B0 B1 SEND_B1"),
                 ["worker 0.0 at RECV_B0 waits for worker 1.0's SEND_B0", "worker 1.0 at RECV_F1 waits for worker 0.0's SEND_F1"],
                 id="each waits for what the other would send later"),
    pytest.param(("F0 F1 SEND_F0 RECV_B0 B0 RECV_B1 B1", "RECV_F0 F0 B0 SEND_B0 RECV_F1 F1 B1 SEND_B1"),
                 ["worker 0.0 at RECV_B1 waits for worker 1.0's SEND_B1", "worker 1.0 at RECV_F1 waits for worker 0.0's SEND_F1"],
                 id="a send is missing"),
    pytest.param(("F0 F1", "F0 I0 W0 F1 W1 I1"), ["worker 1.0 at W1 waits for its own I1", ""], id="W before I"),
    pytest.param(("F0 SEND_F0 F1 REDUCE STEP", "RECV_F0 F0 B0 RECV_F1 F1 B1 REDUCE STEP"),
                 ["worker 1.0 at RECV_F1 waits for worker 0.0's SEND_F1", "worker 0.0 at the end of its list waits for nothing"],
                 id="the peer has ended"),
])
def test_lists_that_cannot_go_on_are_refused_naming_who_waits_for_what(lists: tuple[str, ...], said: list[str]) -> None:
    with pytest.raises(ScheduleStuck) as caught:
        simulate(schedule_of(*lists), Costs.equal(2))
    for words in said:
        assert words in str(caught.value)
    assert caught.value.waits


def test_a_replica_that_never_comes_to_reduce_is_named() -> None:
    with pytest.raises(ScheduleStuck, match=r"0\.0 at REDUCE waits for REDUCE of stage 0's other replicas, and worker 0\.1 at B1"):
        simulate(schedule_of("F0 B0 REDUCE", "B1 F1 REDUCE", replicas=(2,)), Costs.equal(1))
