"""The optimizer of a run and its learning rate at every step. Pure but for the torch objects it makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from sparkring.conf.schema import OptimizerConfig


def make_optimizer(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    """Make the optimizer that ``config`` names, with fused kernels, which read and write each value once.

    There may be no parameters.
    """
    group = [{"params": list(parameters)}]  # torch takes an empty group, but no empty list of parameters
    if config.name == "sgd":
        return torch.optim.SGD(group, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay, fused=True)
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(group, lr=config.lr, weight_decay=config.weight_decay, fused=True)


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


def clip_before_step(optimizer: torch.optim.Optimizer, max_norm: float, *, holders: Mapping[nn.Parameter, int] | None = None,
                     sum_over_ranks: Callable[[Tensor], None] | None = None) -> None:
    """Scale gradients down to a norm of ``max_norm`` over the whole model, from now on before each step.

    Args:
        optimizer: Updates this rank's parameters.
        max_norm: Gradients of a smaller norm stay as they are.
        holders: Of parameters that several ranks hold with the same gradient, the number of these ranks.
        sum_over_ranks: Sums a tensor of one float64 on the CPU over all ranks, in place; None where every rank holds all parameters.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    shares = [1 / (holders or {}).get(parameter, 1) for parameter in parameters]

    def clip(*_: object) -> None:
        square = torch.zeros(1, dtype=torch.float64, device=parameters[0].device if parameters else None)
        for parameter, share in zip(parameters, shares, strict=True):
            if parameter.grad is not None:
                square += share * torch.linalg.vector_norm(parameter.grad, dtype=torch.float64) ** 2
        square = square.cpu()  # once, not for each gradient: it waits for the device
        if sum_over_ranks is not None:
            sum_over_ranks(square)
        factor = max_norm / (math.sqrt(float(square)) + 1e-6)  # as torch.nn.utils.clip_grad_norm_ does
        if factor < 1:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)

    optimizer.register_step_pre_hook(clip)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of the next step, for all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate
