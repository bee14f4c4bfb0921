"""A model cut into stages trains as the whole model does in one process: every parameter, to 1e-10, whatever the layout."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pytest
from torch import Tensor, nn

from harness.ranks import run_on_ranks
from sparkring.conf.schema import TransportName
from sparkring.errors import PipelineShapeError
from sparkring.models.blocks import BlockList, in_turn
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.transports.catalogue import TRANSPORT_NAMES
from tests.support.pipeline_jobs import ImageJob, RaggedJob, SkipJob, TextJob, TorchDropoutJob
from tests.support.pipelines import Case, Job, furthest, train_pipelined, train_serially

TWO = [
    Case((1, 1), "gpipe"),
    Case((1, 1), "1f1b", transport="horovod"),
    Case((1, 1), "1f1b", recompute="always", optimizer="adam"),
    Case((1, 1), "zero_bubble"),
    Case((1, 1), "zero_bubble", recompute="except_last", transport="horovod"),
    Case((1, 1), "interleaved", chunks_per_stage=2, recompute="except_last"),
    Case((1, 1), "interleaved", chunks_per_stage=4, transport="horovod"),
    Case((1, 1), "interleaved", chunks_per_stage=3, micro_batches=5, recompute="always", optimizer="adam"),
    Case((1, 1), "1f1b", micro_batches=1),
    Case((2,), "gpipe"),
]
THREE = [
    Case((2, 1), "gpipe", transport="horovod", optimizer="adam"),
    Case((1, 2), "1f1b"),
    Case((2, 1), "zero_bubble", recompute="always"),
    Case((1, 2), "zero_bubble", micro_batches=5),
    Case((1, 1, 1), "1f1b", micro_batches=2),
    Case((1, 1, 1), "zero_bubble", micro_batches=6, transport="horovod"),
    Case((1, 1, 1), "interleaved", micro_batches=6, chunks_per_stage=2),
    Case((1, 1, 1), "gpipe", recompute="except_last"),
]
FOUR = [
    Case((2, 2), "1f1b", transport="horovod"),
    Case((2, 2), "interleaved", micro_batches=4, chunks_per_stage=2),
    Case((1, 2, 1), "1f1b", micro_batches=6, recompute="except_last"),
    Case((1, 1, 1, 1), "zero_bubble", micro_batches=8),
    Case((1, 1, 1, 1), "1f1b", micro_batches=8, optimizer="adam"),
    Case((1, 3), "gpipe", micro_batches=2),
    Case((1, 1, 1, 1), "interleaved", micro_batches=5, chunks_per_stage=2, transport="horovod", recompute="always"),
    Case((1, 1, 1, 1), "gpipe", micro_batches=4, transport="horovod", recompute="except_last"),
    Case((2, 2), "gpipe", recompute="always", optimizer="adam"),
    Case((2, 2), "zero_bubble", micro_batches=8, transport="horovod", recompute="except_last", optimizer="adam"),
    Case((2, 1, 1), "1f1b", micro_batches=16, transport="horovod", recompute="always"),
]
SIX = [
    Case((2, 2, 2), "1f1b", micro_batches=6, recompute="always"),
    Case((2, 2, 2), "interleaved", micro_batches=6, chunks_per_stage=2, optimizer="adam"),
    Case((2, 2, 2), "zero_bubble", micro_batches=8, transport="horovod"),
    Case((1, 2, 3), "gpipe", micro_batches=6, transport="horovod", recompute="except_last"),
]


class MortalJob(SkipJob):
    """Its first block ends the process that computes it, as if killed, at micro-batch 2."""

    def blocks(self) -> BlockList:
        """The same blocks, the first one mortal."""
        whole, calls = super().blocks(), count()

        def run(parts: Sequence[nn.Module], x: Tensor) -> Tensor:
            if next(calls) == 2:
                os._exit(9)
            return in_turn(parts, x)

        return replace(whole, blocks=(replace(whole.blocks[0], run=run), *whole.blocks[1:]))


@pytest.mark.parametrize("transport", TRANSPORT_NAMES)
def test_a_stage_that_dies_is_reported_by_the_next_one_with_stage_and_micro_batch(transport: TransportName) -> None:
    case = Case((1, 1), "1f1b", transport=transport)
    with pytest.raises(AssertionError, match=r"(?s)rank 1 raised.*PeerSilent: rank 1 \(stage 1, micro-batch [12], RECV_F[12]\) (sto|tim)"):
        run_on_ranks(2, train_pipelined, MortalJob(), [case], doomed={0})


@pytest.mark.parametrize("transport", TRANSPORT_NAMES)
def test_shapes_may_change_between_micro_batches_where_that_was_asked_for(transport: TransportName) -> None:
    case = Case((1, 1), "1f1b", micro_batches=6, transport=transport, dynamic_shapes=True)
    for results in run_on_ranks(2, train_pipelined, RaggedJob(), [case]):
        wanted, _ = train_serially(RaggedJob(), micro_batches=6, optimizer="sgd")
        assert furthest(results[0][0], wanted) < 1e-10


def _refused(context: RankContext, case: Case) -> str:
    try:
        train_pipelined(context, RaggedJob(), [case])
    except PipelineShapeError as error:
        return str(error)
    return "trained"


@pytest.mark.parametrize("transport", TRANSPORT_NAMES)
def test_a_shape_that_changes_is_told_by_both_stages_with_rank_stage_and_micro_batch(transport: TransportName) -> None:
    first, second = run_on_ranks(2, _refused, Case((1, 1), "1f1b", micro_batches=6, transport=transport))
    what = (r"micro-batch \d on edge f1 0>1 is float64 \[2, 6\].*, the first one of as many rows was float64 \[2, 12\]|"
            r"micro-batch \d on edge f1 0>1 is float64 \[2, 12\].*, the first one of as many rows was float64 \[2, 6\]")
    assert re.search(what, first), first
    assert re.match(r"rank 0 \(stage 0, micro-batch \d, SEND_F\d\): ", first), first
    assert re.match(r"rank 1 \(stage 1, micro-batch \d, (RECV_F|SEND_B)\d\): ", second), second  # at whatever it met with it
    assert " ".join(re.findall(r"micro-batch \d on .*dynamic_shapes=true", first)) in second


def test_control_torch_s_own_dropout_trains_something_else_in_stages() -> None:
    wanted, _ = train_serially(TorchDropoutJob(), micro_batches=4, optimizer="sgd")
    for results in run_on_ranks(2, train_pipelined, TorchDropoutJob(), [Case((1, 1), "1f1b")]):
        assert furthest(results[0][0], wanted) > 1e-3


@pytest.mark.parametrize("job", [SkipJob(), TextJob(), ImageJob()], ids=["skip connection", "decoder with dropout", "batch normalisation"])
@pytest.mark.parametrize("cases", [TWO, THREE, FOUR, SIX], ids=["2 ranks", "3 ranks", "4 ranks", "6 ranks"])
def test_stages_train_as_one_process_does(job: Job, cases: list[Case]) -> None:
    ranks = sum(cases[0].replicas)
    everyone = run_on_ranks(ranks, train_pipelined, job, cases)
    for number, case in enumerate(cases):
        wanted, losses = train_serially(job, micro_batches=case.micro_batches, optimizer=case.optimizer)
        seen: set[str] = set()
        for state, got_losses, _ in (results[number] for results in everyone):
            assert furthest(state, wanted) < 1e-10, str(case)
            assert got_losses == pytest.approx(losses, rel=1e-10), str(case)
            seen |= state.keys()
        assert seen == wanted.keys(), f"{case}: {sorted(wanted.keys() - seen)} are on no rank"
