"""Schedules and scaling rules: numbers worked by hand, and torch's own schedulers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from sparkring.conf.schema import OptimizerConfig, TrainConfig
from sparkring.models.text import text_blocks
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.job.optimizer import learning_rate, make_optimizer
from sparkring.pipelines.training.profiling.fit import optimizer_copies
from sparkring.pipelines.training.profiling.shard_times import shard_counts


def _rates(total: int, batch_rows: int = 256, **settings: Any) -> list[float]:
    config = OptimizerConfig(**settings)
    return [learning_rate(step, total_steps=total, config=config, batch_rows=batch_rows) for step in range(total)]


def test_steps_fall_by_the_factor_at_each_milestone() -> None:
    assert _rates(8, lr=1.0, schedule="step", milestones=(0.5, 0.75), decay=0.1) == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])
    assert _rates(4, lr=1.0, schedule="step", milestones=(0.5,), decay=0.5, warmup_steps=2) == pytest.approx([0.5, 1, 0.5, 0.5])


@pytest.mark.parametrize("share", [0.07, 0.14, 0.28, 0.55])
def test_a_milestone_is_where_its_share_of_the_steps_ends(share: float) -> None:
    rates = _rates(100, lr=1.0, schedule="step", milestones=(share,))
    assert rates.index(0.1) == round(100 * share)
    assert share * 100 > round(100 * share), "the control: in floats the product is a little more"


def test_adam_still_takes_a_momentum_that_it_ignores() -> None:
    assert OptimizerConfig(name="adamw", momentum=0.9).momentum == 0.9


def test_lars_is_refused_with_shards_and_the_planner_tries_none() -> None:
    lars = {"name": "lars", "momentum": 0.9}
    with pytest.raises(ValidationError, match=r"name=lars takes the norm of whole layers, and train\.parallel\.shards=2 divides them"):
        TrainConfig.model_validate({"num_ranks": 2, "optimizer": lars, "parallel": {"shards": 2}})
    context = RankContext(rank=0, hosts=(0, 0), device="cpu", token="t", deadline_s=1.0, shared_memory=True)
    blocks = text_blocks(16, 8, width=8, layers=1, heads=2, tied=True)
    assert shard_counts(context, blocks, OptimizerConfig.model_validate(lars)) == []
    assert shard_counts(context, blocks, OptimizerConfig()) == [2], "the control"


@pytest.mark.parametrize(("settings", "copies"), [
    ({"name": "sgd"}, 0), ({"name": "sgd", "momentum": 0.9}, 1), ({"name": "lars"}, 1), ({"name": "adagrad"}, 1), ({"name": "rmsprop"}, 1),
    ({"name": "rmsprop", "momentum": 0.5}, 2), ({"name": "adam"}, 2), ({"name": "adamw", "momentum": 0.5}, 2)], ids=str)
def test_the_planner_knows_what_an_optimizer_keeps(settings: dict[str, Any], copies: int) -> None:
    config = OptimizerConfig(**settings)
    assert optimizer_copies(config) == copies
    weights = nn.Parameter(torch.ones(3, 3))
    weights.grad = torch.ones(3, 3)
    optimizer = make_optimizer([weights], config)
    optimizer.step()
    kept = sum(value.numel() for value in optimizer.state[weights].values() if isinstance(value, torch.Tensor) and value.dim())
    assert kept == copies * weights.numel(), "as much as it has after a step"


@pytest.mark.parametrize("total", [10, 57, 400])
def test_one_cycle_is_torch_s(total: int) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.3, total_steps=total, cycle_momentum=False)
    theirs = []
    for _ in range(total):
        theirs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
        if len(theirs) == total:
            break
    assert _rates(total, lr=0.3, schedule="one_cycle") == pytest.approx(theirs, rel=1e-9)


def test_the_rules_scale_the_peak_by_the_global_batch() -> None:
    rates = {rule: _rates(2, batch_rows=1024, lr=0.1, schedule="constant", scaling=rule, scaling_rows=256)[0]
             for rule in ("linear", "sqrt")}
    assert rates == pytest.approx({"linear": 0.4, "sqrt": 0.2})
    assert _rates(2, batch_rows=1024, lr=0.1, schedule="constant")[0] == 0.1, "the control: no rule"


@pytest.mark.parametrize(("settings", "message"), [
    ({"name": "adagrad", "momentum": 0.9}, "momentum=0.9 has no effect with name adagrad; it is of sgd, rmsprop, lars"),
    ({"name": "sgd", "betas": (0.9, 0.95)}, "has no effect with name sgd; it is of adam, adamw"),
    ({"name": "sgd", "nesterov": True}, "looks ahead along the momentum, which is 0"),
    ({"schedule": "cosine", "decay": 0.5}, "decay=0.5 has no effect with schedule cosine; it is of step"),
    ({"schedule": "one_cycle", "warmup_steps": 5}, "warmup_steps=5 has no effect with schedule one_cycle"),
    ({"schedule": "step", "milestones": (0.7, 0.5)}, "do not ascend; sort them"),
    ({"scaling": "linear"}, "needs the batch that lr was found for; give both or neither"),
    ({"scaling_rows": 256}, "needs the batch that lr was found for"), ({"name": "adamax"}, "Input should be 'sgd'")], ids=str)
def test_what_would_be_passed_over_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        OptimizerConfig(**settings)
