"""Sums in 16 bits: what was sent and what is kept equals the gradients, and all ranks get the same bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkring.conf.schema import WireType
from sparkring.pipelines.parallel.allreduce.costs import Way, ways
from sparkring.pipelines.parallel.allreduce.error_feedback import DTYPES, ErrorFeedback, feedback_of
from tests.support.allreduce_play import exchange_all, exchanges

LENGTH, STEPS = 200, 6


def _gradients(place: int, step: int) -> Tensor:
    """Multiples of 2**-15 of about one: float32 holds their sums and differences exactly, 16 bits do not."""
    generator = torch.Generator().manual_seed(100 * step + place)
    return torch.randint(-2**15, 2**15, (LENGTH,), generator=generator).float() / 2**15


def _trained(hosts: tuple[int, ...], way: Way, wire: WireType, *, keeps: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """(The sum of all gradients of all steps, the sum of the sums that ranks got, what is kept in the end.)"""
    count = len(hosts)
    kept = [ErrorFeedback(LENGTH, DTYPES[wire]) for _ in hosts]
    schedules = [way.rounds(place, hosts, LENGTH) for place in range(count)]
    total, got = torch.zeros(LENGTH, dtype=torch.float64), torch.zeros(LENGTH, dtype=torch.float64)
    with exchanges(count) as ranks:
        for step in range(STEPS):
            values = [_gradients(place, step) for place in range(count)]
            total += torch.stack(values).double().sum(dim=0)
            found = exchange_all(ranks, schedules, values, kept)
            assert all(torch.equal(each, found[0]) for each in found), "the same bits"
            assert torch.equal(found[0], found[0].to(kept[0].dtype).float()), "16 bits"
            got += found[0].double()
            if not keeps:
                for each in kept:
                    each.kept.zero_()
    return total, got, torch.stack([each.kept for each in kept]).double().sum(dim=0)


@pytest.mark.parametrize("wire", ["bf16", "fp16"])
@pytest.mark.parametrize(("hosts", "way"), [
    pytest.param(hosts, way, id=f"{way}, hosts {hosts}") for hosts in ((0, 1), (0, 1, 2, 3, 4), (0, 0, 1, 1))
    for way in ways("auto", hosts, rounds_once=True)])
def test_what_was_sent_and_what_is_kept_equals_the_gradients(hosts: tuple[int, ...], way: Way, wire: WireType) -> None:
    total, got, kept = _trained(hosts, way, wire)
    assert torch.equal(got + kept, total)
    assert kept.abs().max() > 0, "16 bits do round"
    without, lost, _ = _trained(hosts, way, wire, keeps=False)
    assert (lost - without).abs().mean() > 1.5 * (got - total).abs().mean(), "the control: without it errors add up"


def test_doubling_is_not_offered_as_it_would_round_again_and_again() -> None:
    assert {way.between for way in ways("auto", (0, 1, 2), rounds_once=False)} == {"ring", "halving", "doubling"}
    assert {way.between for way in ways("auto", (0, 1, 2), rounds_once=True)} == {"ring", "halving"}


def test_few_elements_are_sent_exactly() -> None:
    assert feedback_of("bf16", 5) is None
    assert feedback_of("bf16", 5000) is not None, "the control"
    assert feedback_of("exact", 5000) is None


def test_a_step_that_is_not_finite_stays_so_and_spoils_no_later_one() -> None:
    feedback = ErrorFeedback(4, torch.float16)
    sent = feedback.part(torch.tensor([1.0, float("inf"), float("nan"), 1e6]), 0)
    assert sent.isfinite().tolist() == [True, False, False, False], "1e6 is too large for fp16"
    assert feedback.kept.tolist() == [0.0, 0.0, 0.0, 0.0]
