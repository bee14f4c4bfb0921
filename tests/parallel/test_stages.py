"""A model cut into stages trains as the whole model does in one process: every parameter, to 1e-10, whatever the layout."""

from __future__ import annotations

import pytest
from numpy.linalg import norm

from tests.support.pipeline_jobs import SkipJob, TextJob
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


def furthest(got: dict[str, Values], wanted: dict[str, Values]) -> float:
    """The largest relative difference of any parameter."""
    return max(float(norm(got[name] - wanted[name]) / norm(wanted[name])) for name in got)


@pytest.mark.parametrize("job", [SkipJob(), TextJob()], ids=["skip connection", "decoder"])
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
