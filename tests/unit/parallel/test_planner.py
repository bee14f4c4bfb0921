"""The planner's arithmetic: lines through measurements, bytes of a stage, waiting for gradients, candidates, and what wins and why."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkring.conf.schema import TrainConfig
from sparkring.errors import ConfigError, LayoutRefused
from sparkring.pipelines.parallel.planner.cost_model import (
    BlockProfile,
    Cluster,
    Handover,
    Hop,
    Line,
    LinkCosts,
    ModelProfile,
    PassSeconds,
    SumCost,
)
from sparkring.pipelines.parallel.planner.enumerate import Candidate, Constraints, candidates, remedies, ring_sizes, shapes
from sparkring.pipelines.parallel.planner.fit import fit_line, fit_sum
from sparkring.pipelines.parallel.planner.gradient_sum import waiting_s
from sparkring.pipelines.parallel.planner.planner import Plan, best_layout, one_each, plan
from sparkring.pipelines.parallel.planner.prediction import Prediction, predict

UNCONSTRAINED = SumCost()
DEAR = SumCost(step=Line(0.0, 1e-6))


def model(num_blocks: int = 4, *, parameters: float = 1e6, activations: float = 0.0, tied: bool = False) -> ModelProfile:
    """Equal blocks: 1 s forward and 2 s backward for 8 rows; the first and the last may share a part of 4 MB."""
    ends = {0, num_blocks - 1} if tied else set()
    return ModelProfile(blocks=tuple(
        BlockProfile(name=f"b{number}", forward=Line(0.0, 1 / 8), backward=Line(0.0, 2 / 8), parameter_bytes=parameters,
                     activation_bytes=activations, shared_bytes={"table": 4e6} if number in ends else {}) for number in range(num_blocks)),
        optimizer_copies=2)


def cluster(sums: SumCost = UNCONSTRAINED, *, hop: Line = Line(), memory: float = math.inf, ranks_per_host: int = 8) -> Cluster:  # noqa: B008
    links = LinkCosts(sum_local=sums, sum_between=sums, hop_local={"sidecar": Hop(hop)}, hop_between={"sidecar": Hop(hop)})
    return Cluster(links=links, memory_bytes=memory, ranks_per_host=ranks_per_host)


def prediction(candidate: Candidate, *, of: ModelProfile | None = None, on: Cluster | None = None, rows: int = 32) -> Prediction:
    return predict(of or model(), on or cluster(), candidate, batch_rows=rows)


def test_a_line_goes_through_the_medians_whatever_one_repetition_did() -> None:
    line = fit_line({10: [1.2, 1.2, 99.0], 20: [2.2, 2.2, 0.1], 40: [4.2, 4.2, 4.2]})
    assert line == pytest.approx((0.2, 0.1))
    assert fit_line({10: [99.0], 20: [2.2]}) != pytest.approx((0.2, 0.1)), "without the median"


def test_no_coefficient_of_a_line_is_negative() -> None:
    assert fit_line({10: [1.0], 20: [3.0]}) == pytest.approx((0.0, (10 + 20 / 3) / (10 ** 2 + (20 / 3) ** 2)))
    assert fit_line({10: [2.0], 20: [1.0]}).beta_s == 0.0
    with pytest.raises(ConfigError, match="at least two"):
        fit_line({10: [1.0]})


@given(st.floats(1e-6, 1e-2), st.floats(1e-11, 1e-7))
def test_the_step_of_a_ring_is_found_from_sums_of_two_groups_and_foretells_a_third(alpha_s: float, byte_s: float) -> None:
    def seconds(group: int, size: float) -> float:
        return 2 * (group - 1) * (alpha_s + byte_s * size / group)

    fitted = fit_sum({group: {size: [seconds(group, size)] for size in (10 ** 4, 10 ** 6, 10 ** 8)} for group in (2, 4)})
    assert fitted.at(8, 1e7) == pytest.approx(seconds(8, 1e7), rel=1e-6)
    assert fitted.at(4, 1e7) == pytest.approx(seconds(4, 1e7), rel=1e-6)
    assert fitted.at(1, 1e7) == 0.0


def test_sums_inside_hosts_come_before_one_over_hosts_and_a_single_ring_goes_at_its_slowest_link() -> None:
    local, between = SumCost(step=Line(1.0)), SumCost(step=Line(100.0))  # 2 (n - 1) steps
    hosts = [0, 0, 0, 1, 1, 1]
    assert LinkCosts(sum_local=local, sum_between=between).sum_s(hosts, 0) == 2 * 2 * 1.0 + 2 * 1 * 100.0
    assert LinkCosts(sum_local=local, sum_between=between, by_host=False).sum_s(hosts, 0) == 2 * 5 * 100.0
    assert LinkCosts(sum_local=local, sum_between=between, by_host=False).sum_s([0, 0, 0], 0) == 2 * 2 * 1.0


def test_only_what_the_backward_pass_does_not_cover_is_waited_for() -> None:
    def wait(*, overlaps: bool, bucket: float) -> float:
        return waiting_s([4, 2, 1], [3.0, 3.0, 3.0], bucket_bytes=bucket, sum_s=lambda size: size, overlaps=overlaps)

    # backward ends 3 (block 2), 6 (block 1), 9 (block 0): buckets of one block are summed 3-4, 6-8, 9-13
    assert wait(overlaps=True, bucket=1) == 4
    # buckets [2 and 1] and [0]: 6-9, 9-13
    assert wait(overlaps=True, bucket=3) == 4
    assert wait(overlaps=True, bucket=100) == 7
    assert wait(overlaps=False, bucket=1) == 7


def test_a_pipeline_without_hops_takes_what_the_closed_form_says() -> None:
    # 4 blocks of 3 s on 2 stages, 4 micro-batches of 8 rows: (m + p - 1) x 6 s, idle (p - 1) / (m + p - 1)
    found = prediction(Candidate(replicas=(1, 1), micro_batches=4))
    assert (found.seconds, found.idle, found.cut) == (pytest.approx(30), pytest.approx(1 / 5), (2, 2))
    assert prediction(Candidate(replicas=(1,), micro_batches=4)).seconds == pytest.approx(4 * 12)
    # two such pipelines side by side do half of the micro-batches each
    assert prediction(Candidate(replicas=(2, 2), micro_batches=8), rows=64).seconds == pytest.approx(30)


def test_a_message_takes_the_time_of_the_sender_of_nobody_and_of_the_receiver() -> None:
    hop = Hop(whole=Line(1.0, 0.01), send=Line(0.25), receive=Line(0.0, 0.005))
    assert hop.at(100) == Handover(0.25, 1.25, 0.5)
    assert hop.at(100).seconds == hop.whole.at(100)
    assert Hop(send=Line(1.0)).at(100) == Handover(1.0, 0.0, 0.0), "nothing arrives before it was sent"
    links = LinkCosts(hop_local={"sidecar": hop, "horovod": Hop(Line(0.0, 0.02))})
    assert (links.fastest(10, between=0), links.fastest(1000, between=0)) == ("horovod", "sidecar")
    assert links.handover("sidecar", 10, between=1) == Handover()


def test_the_executor_takes_its_time_once_a_chunk_and_none_where_it_does_not_run() -> None:
    beside = PassSeconds(forward_s=0.25, backward_s=0.5, input_s=1.0, weight_s=2.0)
    of = replace(model(), executor=beside)
    staged = Candidate(replicas=(1, 1), micro_batches=4)
    assert prediction(staged, of=of).seconds - prediction(staged).seconds == pytest.approx(5 * 0.75)  # (m + p - 1) slots of F and B
    plain = Candidate(replicas=(2,), micro_batches=2)
    assert prediction(plain, of=of).seconds == prediction(plain).seconds
    single = Candidate(replicas=(1,), micro_batches=4, schedule="zero_bubble")
    assert prediction(single, of=of).seconds - prediction(single).seconds == pytest.approx(4 * (0.25 + 1.0 + 2.0))


def test_halves_of_a_backward_pass_are_taken_as_measured() -> None:
    of = replace(model(), blocks=tuple(replace(block, halves=(Line(0.0, 3 / 8), Line(0.0, 1 / 8))) for block in model().blocks))
    candidate = Candidate(replicas=(1,), micro_batches=4, schedule="zero_bubble")
    assert prediction(candidate).seconds == pytest.approx(4 * 4 * (1 + 2))
    assert prediction(candidate, of=of).seconds == pytest.approx(4 * 4 * (1 + 3 + 1))


def test_rows_that_do_not_divide_count_as_many_as_there_are_but_memory_is_for_the_largest_micro_batch() -> None:
    found = prediction(Candidate(replicas=(1,), micro_batches=3), of=model(activations=1.0), rows=8)
    assert found.seconds == pytest.approx(12.0)
    assert found.memory[0].activations == 4 * 3
    together = prediction(Candidate(replicas=(1,), micro_batches=3, schedule="gpipe"), of=model(activations=1.0), rows=8)
    assert together.memory[0].activations == 4 * 8, "all of them hold no more rows than there are"


def test_the_end_of_a_step_and_updates_close_it() -> None:
    of = replace(model(), step_s=5.0, blocks=tuple(replace(block, update_s=0.25) for block in model().blocks))
    for candidate, blocks_a_stage in ((Candidate(replicas=(1,), micro_batches=1), 4), (Candidate(replicas=(1, 1), micro_batches=4), 2)):
        assert prediction(candidate, of=of).seconds - prediction(candidate).seconds == pytest.approx(5.0 + 0.25 * blocks_a_stage)


def test_a_stage_with_more_replicas_gets_more_blocks() -> None:
    assert prediction(Candidate(replicas=(3, 1), micro_batches=6)).cut == (3, 1)
    assert prediction(Candidate(replicas=(1, 3), micro_batches=6)).cut == (1, 3)


def test_memory_of_a_stage_counts_what_is_there_at_once() -> None:
    of = model(activations=1e5, tied=True)
    one, other = prediction(Candidate(replicas=(2, 2), micro_batches=8), of=of).memory
    # two blocks of 1 MB and the shared part; 4 rows a micro-batch; stage 0 holds two micro-batches of two blocks, stage 1 one
    assert (one.parameters, one.gradients, one.optimizer) == (6e6, 6e6, 12e6)
    assert (one.activations, other.activations) == (2 * 2 * 4 * 1e5, 1 * 2 * 4 * 1e5)
    gpipe = prediction(Candidate(replicas=(2, 2), micro_batches=8, schedule="gpipe"), of=of).memory[0]
    assert gpipe.activations == 4 * 2 * 4 * 1e5
    shared = prediction(Candidate(replicas=(2, 2), micro_batches=8, shard_optimizer=True), of=of).memory[0]
    assert shared.optimizer == 6e6
    # all in one stage: the shared part once
    assert prediction(Candidate(replicas=(1,), micro_batches=1), of=of).memory[0].parameters == 8e6


def test_a_part_that_two_stages_hold_is_summed_over_both() -> None:
    candidate = Candidate(replicas=(1, 1), micro_batches=4)
    alone = prediction(candidate, on=cluster(DEAR))
    tied = prediction(candidate, of=model(tied=True), on=cluster(DEAR))
    assert tied.seconds - alone.seconds == pytest.approx(DEAR.at(2, 4e6))


def test_fewer_cores_than_ranks_slow_the_passes_down() -> None:
    candidate = Candidate(replicas=(4,), micro_batches=4)
    assert prediction(candidate, on=replace(cluster(), cores_per_host=2)).seconds == pytest.approx(2 * prediction(candidate).seconds)


def test_candidates_are_all_that_the_ranks_and_rows_allow() -> None:
    assert ring_sizes(6) == (1, 2, 4, 6)
    assert list(shapes(4, most_stages=3)) == [(4,), (1, 3), (2, 2), (3, 1), (1, 1, 2), (1, 2, 1), (2, 1, 1)]
    assert list(shapes(8, most_stages=4)) == [(8,), (4, 4), (2, 2, 2, 2)]
    assert {one.replicas for one in candidates(2, num_blocks=1, batch_rows=8)} == {(1,), (2,)}, "one block cannot be cut"
    assert max(one.micro_batches for one in candidates(4, num_blocks=4, batch_rows=5)) <= 5


def test_what_a_run_has_settled_is_kept() -> None:
    def counts(fixed: Constraints) -> set[int]:
        return {one.micro_batches for one in candidates(4, num_blocks=4, batch_rows=64, fixed=fixed)}

    assert counts(Constraints(micro_batches=6)) == {6}
    assert (4,) not in {one.replicas for one in candidates(4, num_blocks=4, batch_rows=64, fixed=Constraints(micro_batches=6))}
    assert counts(Constraints()) >= {16, 32}
    assert counts(Constraints(lanes=24)) == {1, 2, 3, 4, 6, 8, 12, 24}, "16 would take one lane or two"
    with pytest.raises(LayoutRefused, match=r"has 7 micro-batches for 4 rows a step; give another"):
        best_layout(model(), cluster(), world=2, batch_rows=4, fixed=Constraints(micro_batches=7))


@given(world=st.integers(1, 6), num_blocks=st.integers(1, 9), batch_rows=st.integers(1, 64))
@settings(max_examples=15)
def test_every_candidate_has_a_price_and_a_config_that_asks_for_it(world: int, num_blocks: int, batch_rows: int) -> None:
    plans = plan(model(num_blocks), cluster(hop=Line(0.01, 0.0)), world=world, batch_rows=batch_rows)
    seconds = [each.seconds for each in plans]
    assert all(before <= after * (1 + 1e-5) for before, after in pairwise(seconds))
    assert plans[0].seconds < math.inf
    for each in plans:
        train = TrainConfig.model_validate(each.section())
        assert train.num_ranks == each.candidate.num_ranks
        assert (train.replicas, train.num_micro_batches) == (each.candidate.replicas, each.candidate.micro_batches)
        assert sum(each.prediction.cut) == num_blocks


def test_plain_data_parallelism_wins_where_sums_are_cheap_and_stages_where_they_are_dear() -> None:
    hop = Line(0.01, 0.0)
    cheap = best_layout(model(), cluster(hop=hop), world=4, batch_rows=32)
    assert (cheap.candidate.replicas, cheap.section()["parallel"]) == ((4,), {})
    assert cheap.reason.startswith("plain data parallelism wins")
    dear = best_layout(model(), cluster(DEAR, hop=hop), world=4, batch_rows=32)
    assert dear.candidate.num_stages > 1
    assert dear.reason.startswith("stages win: plain data parallelism is ")


def test_of_equally_fast_layouts_the_simplest_wins() -> None:
    found = best_layout(model(parameters=0.1 + 0.2), cluster(), world=1, batch_rows=24)
    assert (found.candidate.micro_batches, found.candidate.schedule) == (1, "1f1b")
    seconds = {each.candidate.micro_batches: each.seconds for each in plan(model(), cluster(), world=1, batch_rows=24)}
    assert seconds == pytest.approx(dict.fromkeys((1, 2, 4, 8), 36.0))


def test_shards_are_among_the_layouts_where_the_blocks_can_be_dealt_to_them() -> None:
    halves = tuple(replace(block, forward=block.forward.half(), backward=block.backward.half(), parameter_bytes=block.parameter_bytes / 2)
                   for block in model().blocks)
    of = replace(model(), shards={2: halves})
    slow = cluster(DEAR, hop=Line(10.0))
    best = best_layout(of, slow, world=4, batch_rows=32)
    # 48 s on one rank; 4 replicas: 12 + 2 x 3 / 4 x 4 s of sums; 2 replicas of 2 shards: 12 + 2 x 1 / 2 x 2 s
    assert (best.candidate.replicas, best.candidate.shards, best.seconds) == ((2,), 2, pytest.approx(14))
    assert best.reason.startswith("shards win: plain data parallelism is 29% slower")
    alone = best_layout(of, slow, world=2, batch_rows=32)
    assert (alone.candidate.replicas, alone.candidate.shards, alone.seconds) == ((1,), 2, pytest.approx(32 * 12 / 8 / 2))
    assert alone.section() == {"num_ranks": 2, "parallel": {"replicas": [1], "micro_batches": 1, "shards": 2}}
    TrainConfig.model_validate(alone.section())
    assert alone.prediction.memory[0].parameters == 2e6
    for without in (plan(model(), slow, world=4, batch_rows=32), plan(of, replace(slow, ranks_per_host=1), world=4, batch_rows=32)):
        assert {each.candidate.shards for each in without} == {1}, "no rule to cut them, or a shard on another host"


def test_one_rank_wins_where_everything_else_only_adds() -> None:
    slow = cluster(SumCost(step=Line(100.0, 0.0)), hop=Line(100.0, 0.0))
    found = best_layout(model(), slow, world=4, batch_rows=8)
    assert (found.candidate.num_ranks, found.reason.startswith("one rank wins")) == (1, True)


def test_what_does_not_fit_is_made_smaller_before_it_is_given_up() -> None:
    # 4 blocks of 1 MB: 4 + 4 + 8 MB on one rank; shared out over two ranks, the optimizer's 8 MB become 4
    asked = cluster(memory=13e6)
    plans = {each.candidate.replicas: each for each in one_each(plan(model(), asked, world=2, batch_rows=32))}
    assert plans[2,].candidate.shard_optimizer
    assert "the optimizer's state is sharded" in plans[2,].reason
    assert plans[1,].reason.startswith("does not fit, because a rank takes 16 MB (optimizer 8 MB) of 13 MB")
    assert plans[1, 1].candidate == replace(plans[1, 1].candidate, shard_optimizer=False, recompute="never")
    assert [each.recompute for each in remedies(Candidate(replicas=(1,), micro_batches=1))] == ["never", "always"]


def test_recomputation_is_taken_only_to_fit_and_costs_a_forward_pass() -> None:
    # stage 0 of two: 8 MB, and two micro-batches of two blocks and four rows in flight, 8 MB each
    asked = Candidate(replicas=(1, 1), micro_batches=8)
    roomy, tight = (next(each for each in plan(model(activations=1e6), cluster(memory=memory), world=2, batch_rows=32)
                         if replace(each.candidate, recompute="never") == asked) for memory in (24e6, 17e6))
    assert (roomy.candidate.recompute, roomy.prediction.memory[0].total) == ("never", 24e6)
    assert (tight.candidate.recompute, tight.prediction.memory[0].total) == ("always", 16e6)
    assert tight.seconds == pytest.approx(4 / 3 * roomy.seconds)
    assert "activations are computed twice" in tight.reason


def test_if_nothing_fits_the_smallest_says_why() -> None:
    with pytest.raises(LayoutRefused, match=r"the smallest, 4 stages 1\+1\+1\+1.*does not fit, because stage . takes .* of 1 MB"):
        best_layout(model(), cluster(memory=1e6), world=4, batch_rows=32)


def test_no_layout_is_refused_for_the_hosts_that_its_stages_lie_on() -> None:
    plans = plan(model(), cluster(ranks_per_host=2), world=4, batch_rows=32)
    assert {(1, 3), (3, 1), (2, 2)} <= {each.candidate.replicas for each in plans if not each.prediction.refused}


def test_shards_stay_on_a_host() -> None:
    assert cluster(ranks_per_host=4).keeps_together(2)
    assert not cluster(ranks_per_host=3).keeps_together(2)
    assert replace(cluster(), placed=(0, 0, 1, 1, 1, 1)).keeps_together(2)
    assert not replace(cluster(), placed=(0, 1, 1, 2, 2)).keeps_together(2)


def test_messages_that_leave_a_host_together_share_its_link() -> None:
    """A row has 8 bytes at a border, a link carries one a second: 4 replicas of 4 rows send 32 bytes each, 128 in all."""
    blocks = tuple(replace(block, border_bytes=8.0) for block in model(2).blocks)
    alone, four = (predict(replace(model(2), blocks=blocks), cluster(hop=Line(0.0, 1.0), ranks_per_host=count),
                         Candidate(replicas=(count, count), micro_batches=count, schedule="gpipe"), batch_rows=4 * count).seconds
                   for count in (1, 4))
    assert four - alone == pytest.approx(2 * (128 - 32))
    inside = predict(replace(model(2), blocks=blocks), cluster(hop=Line(0.0, 1.0)),
                   Candidate(replicas=(4, 4), micro_batches=4, schedule="gpipe"), batch_rows=16).seconds
    assert inside == pytest.approx(alone), "on one host each has its own way"
    sums = SumCost(step=Line(0.0, 1.0))
    links = LinkCosts(sum_local=sums, sum_between=sums)
    assert links.sum_s([0, 1], 100, at_once=3) == 3 * links.sum_s([0, 1], 100)
    assert links.sum_s([0, 0], 100, at_once=3) == links.sum_s([0, 0], 100)


def test_of_layouts_that_no_prediction_can_tell_apart_the_simplest_is_best() -> None:
    def step(sum_s: float) -> list[Plan]:
        return plan(model(), cluster(SumCost(step=Line(sum_s / 2, 0.0))), world=2, batch_rows=32)

    fastest = min(each.seconds for each in step(1.0) if not each.candidate.is_plain)
    plain = next(each for each in step(1.0) if each.candidate.is_plain and each.candidate.num_ranks == 2)
    without = plain.seconds - 1.0
    near, far = (step(factor * fastest - without) for factor in (1.01, 1.05))
    assert near[0].candidate.is_plain
    assert near[0].seconds > near[1].seconds
    assert near[1].reason.startswith("as fast as the best")
    assert not far[0].candidate.is_plain
