"""Optimizer state shared out over the replicas of a stage: each keeps and updates some parameters and passes their new values on.

    gradients    summed over the replicas, as without sharding
    update       every parameter by the one replica that owns it: a replica holds 1 / replicas of the optimizer's state
    values       of each owner to all others, by a sum in which everyone else gives zeros, which is exact

Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020 (stage 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from sparkring.pipelines.parallel.collectives.sets import SetReducer

BUFFER_ELEMENTS = 1 << 20
"""Parameters travel in buffers of about so many elements."""


def owners(sizes: Mapping[str, int], replicas: int) -> dict[str, int]:
    """Which replica updates each parameter: the largest first, each to the one that has least; the same on all replicas.

    Args:
        sizes: Elements of each parameter in the whole model, by name.
        replicas: Of the stage.
    """
    load = [0] * replicas
    owner: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owner[name] = load.index(min(load))
        load[owner[name]] += sizes[name]
    return owner


def share_after_step(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], mine: Sequence[bool],
                     replicas: SetReducer) -> None:
    """From now on, pass the new values of this rank's parameters on after each step, and take those of the others.

    Args:
        optimizer: Over this rank's own parameters.
        parameters: All of the stage, in the same order on all its replicas.
        mine: Which of them this rank updates.
        replicas: Of the stage.
    """
    groups: list[list[int]] = []
    for number in range(len(parameters)):
        if not groups or sum(parameters[one].numel() for one in groups[-1]) >= BUFFER_ELEMENTS:
            groups.append([])
        groups[-1].append(number)

    @torch.no_grad()
    def share(*_: object) -> None:
        for place, group in enumerate(groups):
            flat = torch.cat([(parameters[one] if mine[one] else torch.zeros_like(parameters[one])).flatten() for one in group])
            replicas.sum_(flat, f"parameters.{place}")
            for one, values in zip(group, flat.split([parameters[one].numel() for one in group]), strict=True):
                if not mine[one]:
                    parameters[one].copy_(values.view_as(parameters[one]))

    hook: Callable[..., None] = share
    optimizer.register_step_post_hook(hook)
