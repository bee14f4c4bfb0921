"""A model cut into stages trains as the whole model does in one process: every parameter, to 1e-10, whatever the layout."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pytest
from numpy.linalg import norm
from torch import Tensor, nn

from sparkring.models.blocks import BlockList, in_turn
from tests.support.pipeline_jobs import ImageJob, SkipJob, TextJob
from tests.support.pipelines import Case, Job, Values, train_serially, train_staged
from tests.support.ranks import run_on_ranks

TWO = [
    Case((1, 1), "gpipe"),
    Case((1, 1), "1f1b", transport="horovod"),
    Case((1, 1), "1f1b", recompute="always", optimizer="adam"),
    Case((1, 1), "zero_bubble"),
    Case((1, 1), "zero_bubble", recompute="except_last", transport="horovod"),
    Case((1, 1), "interleaved", chunks_per_stage=2, recompute="except_last"),
    Case((1, 1), "interleaved", chunks_per_stage=4, transport="horovod"),
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


@pytest.mark.parametrize("transport", ["sidecar", "horovod"])
def test_a_stage_that_dies_is_reported_by_the_next_one_with_stage_and_micro_batch(transport: str) -> None:
    case = Case((1, 1), "1f1b", transport=transport)
    with pytest.raises(AssertionError, match=r"(?s)rank 1 raised.*PeerSilent: rank 1 \(stage 1, micro-batch [12], RECV_F[12]\) waited"):
        run_on_ranks(2, train_staged, MortalJob(), [case], doomed={0})


def furthest(got: dict[str, Values], wanted: dict[str, Values]) -> float:
    """The largest relative difference of any parameter."""
    return max(float(norm(got[name] - wanted[name])) / max(float(norm(wanted[name])), 1e-12) for name in got)


@pytest.mark.parametrize("job", [SkipJob(), TextJob(), ImageJob()], ids=["skip connection", "decoder", "batch normalisation"])
@pytest.mark.parametrize("cases", [TWO, THREE, FOUR], ids=["2 ranks", "3 ranks", "4 ranks"])
def test_stages_train_as_one_process_does(job: Job, cases: list[Case]) -> None:
    ranks = sum(cases[0].replicas)
    everyone = run_on_ranks(ranks, train_staged, job, cases)
    for number, case in enumerate(cases):
        wanted, losses = train_serially(job, micro_batches=case.micro_batches, optimizer=case.optimizer)
        seen: set[str] = set()
        for state, got_losses, _ in (results[number] for results in everyone):
            assert furthest(state, wanted) < 1e-10, str(case)
            assert got_losses == pytest.approx(losses, rel=1e-10), str(case)
            seen |= state.keys()
        assert seen == wanted.keys(), f"{case}: {sorted(wanted.keys() - seen)} are on no rank"
