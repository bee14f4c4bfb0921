"""The optimizer of a run and its learning rate at every step. Pure but for the torch objects it makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sparkring.conf.schema import OptimizerConfig
from sparkring.pipelines.training.job.lars import Lars


def make_optimizer(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    """Make the optimizer that ``config`` names: sgd, adam and adamw with fused kernels, which read and write each value once.

    There may be no parameters. The rate is set before each step (``set_learning_rate``).
    """
    group = [{"params": list(parameters)}]  # torch takes an empty group, but no empty list of parameters
    common: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    eps: dict[str, Any] = {} if config.eps is None else {"eps": config.eps}
    match config.name:
        case "sgd":
            return torch.optim.SGD(group, momentum=config.momentum, nesterov=config.nesterov, fused=True, **common)
        case "adagrad":
            return torch.optim.Adagrad(group, **common, **eps)
        case "rmsprop":
            return torch.optim.RMSprop(group, momentum=config.momentum, alpha=config.smoothing, **common, **eps)
        case "lars":
            return Lars(group, momentum=config.momentum, trust=config.trust, **common)
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    return kind(group, betas=config.betas, fused=True, **common, **eps)


def learning_rate(step: int, *, total_steps: int, config: OptimizerConfig, batch_rows: int) -> float:
    """The rate of optimizer step ``step`` (from 0) of a run of ``total_steps`` with so many rows each.

    Linear warm-up to the peak, then constant, half a cosine down towards zero, or steps down; or one cycle of two half cosines.
    Source: Loshchilov and Hutter 2017, SGDR, equation 5 with one period; He et al. 2016, section 4.2 (steps); Smith and Topin 2018,
    "Super-convergence", with cosines as in torch's OneCycleLR.
    """
    peak = config.peak_lr(batch_rows)
    if step < config.warmup_steps:
        return peak * (step + 1) / config.warmup_steps
    match config.schedule:
        case "constant":
            return peak
        case "step":
            return peak * config.decay ** sum(step >= _steps(share, total_steps) for share in config.milestones)
        case "one_cycle":
            last, top = max(1, total_steps - 1), config.peak_at * total_steps - 1  # as torch counts: its last step has the last rate
            if top > 0 and step <= top:
                return peak * _between(config.start_share, 1.0, step / top)
            return peak * _between(1.0, config.end_share, (step - top) / max(1e-9, last - top))
        case "cosine":
            return peak * _between(1.0, 0.0, (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps))


def _steps(share: float, total_steps: int) -> int:
    """The steps that make a share of the run, rounded up; 0.55 of 100 are 55, though their product in floats is a little more."""
    return math.ceil(share * total_steps * (1 - 1e-12))


def _between(first: float, last: float, done: float) -> float:
    """Half a cosine from one value to another; ``done`` is the share of the way."""
    return last + (first - last) * 0.5 * (1.0 + math.cos(math.pi * done))


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
