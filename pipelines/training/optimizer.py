"""The optimizer of a run and its learning rate at every step. Pure but for the torch objects it makes."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from sparkring.conf.schema import OptimizerConfig


def make_optimizer(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    """Make the optimizer that ``config`` names; the fused kernels read and write each value once."""
    if config.name == "sgd":
        return torch.optim.SGD(parameters, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay, fused=True)
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(parameters, lr=config.lr, weight_decay=config.weight_decay, fused=True)


def learning_rate(step: int, *, total_steps: int, config: OptimizerConfig) -> float:
    """The rate of optimizer step ``step`` (from 0) of a run of ``total_steps``.

    Linear warm-up to ``config.lr``, then constant or half a cosine down towards zero.
    Source: Loshchilov and Hutter 2017, SGDR, equation 5 with one period.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    done = (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps)
    return config.lr * 0.5 * (1.0 + math.cos(math.pi * done))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Make ``rate`` that of the next step, for all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate
