"""The number of micro-batches that a worker must hold at once, so that no stage waits for another once the pipeline is full.

Between its forward and its backward pass, a micro-batch spends one turn at each replica from here to the end, and some turns
on its way. So, by Little's law, a stage holds as many micro-batches as there are replicas from it to the end, shared among its
own replicas:

    replicas           2    1    1         equal widths: p, p - 1, ... 1, the textbook's
    from here on       4    2    1
    a worker holds     2    2    1

Source: J. D. C. Little 1961, "A Proof for the Queuing Formula L = lambda W".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.schedule import Action


def in_flight_limits(replicas: Sequence[int], costs: Costs | None = None) -> list[int]:
    """(stages,) micro-batches that a worker of each stage may hold.

    Args:
        replicas: Replicas of each stage.
        costs: With them, long hops add micro-batches; without, hops take no time.
    """
    stages = len(replicas)
    hops_s = [0.0] * stages
    pace_s = 1.0
    if costs is not None:
        pace_s = max((costs.forward_s[stage] + costs.backward_s[stage]) / replicas[stage] for stage in range(stages))
        for stage in reversed(range(stages - 1)):
            hops_s[stage] = hops_s[stage + 1] + costs.hop_forward_s[stage] + costs.hop_backward_s[stage]
    on_the_way = [math.ceil(hop / pace_s) if pace_s > 0 else 0 for hop in hops_s]
    return [-(-(sum(replicas[stage:]) + on_the_way[stage]) // replicas[stage]) for stage in range(stages)]


def alternate(forwards: Sequence[Action], backwards: Sequence[Action], *, limit: int) -> tuple[Action, ...]:
    """``limit`` forward passes, then backward and forward alternately, then the remaining backward passes."""
    actions = list(forwards[:limit])
    rest = iter(forwards[limit:])
    for backward in backwards:
        actions.append(backward)
        following = next(rest, None)
        if following is not None:
            actions.append(following)
    return tuple(actions)
