"""Optimizer state sharded over the replicas of a stage: each replica updates some parameters and shares their new values.

    gradients    summed over the replicas, as without sharding
    update       each parameter by the replica that owns it: a replica holds 1 / replicas of the optimizer's state
    values       from the owner to all others, by a sum in which the others give zeros, which is exact

Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020 (stage 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from sparkring.pipelines.parallel.collectives.sets import SetReducer

BUFFER_ELEMENTS = 1 << 20
"""Approximate number of elements of a buffer in which parameters are sent."""


def owners(sizes: Mapping[str, int], replicas: int) -> dict[str, int]:
    """Assign each parameter to the replica that updates it: the largest first, each to the replica with the least load.

    All replicas compute the same assignment.

    Args:
        sizes: Elements of each parameter in the whole model, by name.
        replicas: The number of replicas of the stage.
    """
    load = [0] * replicas
    owner: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owner[name] = load.index(min(load))
        load[owner[name]] += sizes[name]
    return owner


def share_after_step(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], mine: Sequence[bool],
                     replicas: SetReducer) -> None:
    """From now on, share the new values of this rank's parameters after each step, and take those of the other replicas.

    Args:
        optimizer: Updates this rank's own parameters.
        parameters: All parameters of the stage, in the same order on all its replicas.
        mine: Which of them this rank updates.
        replicas: Sums over the replicas of the stage.
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
