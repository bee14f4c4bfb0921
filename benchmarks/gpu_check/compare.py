"""How far the values of one device are from those of another, and how far they may be. Pure; NumPy alone.

    distance of a tensor    |found - wanted| / max(|wanted|, FLOOR |all wanted|)          |x|: the Euclidean norm

A tensor is compared with itself, not with the whole model, so that a wrong gradient of a small tensor shows. The floor is for
gradients that are 0 by mathematics and noise in floats, such as that of the bias of attention's keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Tensors = Mapping[str, NDArray[Any]]
FLOOR = 0.01
"""Share of the norm of all tensors together."""


class Limits(NamedTuple):
    """The largest distances between two devices in one precision."""

    loss: float
    """Of any step's loss, relative."""
    gradient: float
    """Of any tensor of the first step's gradient."""
    learned: float
    """Of any tensor of what a run has added to the initial weights."""


LIMITS: Mapping[str, Limits] = {
    "float64": Limits(loss=1e-10, gradient=1e-9, learned=1e-8),
    "float32": Limits(loss=1e-4, gradient=1e-3, learned=1e-2),
}
"""Rounding is 1e-16 and 6e-8; sums of thousands of terms in another order and a run's steps enlarge it. How much, depends on the network:
see ``run_limits``."""
BF16_LOSS = 0.05
"""Of any step's loss in bf16, relative to that in float32: bfloat16 keeps 8 bits."""


class Distance(NamedTuple):
    """The largest distance of any tensor."""

    value: float
    tensor: str
    """Its name; empty if there is none."""


class Apart(NamedTuple):
    """How far one run is from another."""

    loss: float
    """Of any step, relative."""
    learned: float
    """Of any tensor of what the runs have added to the initial weights."""
    tensor: str = ""
    """The name of that tensor."""

    def within(self, limits: Limits) -> bool:
        """Whether it keeps the limits; NaN does not."""
        return self.loss <= limits.loss and self.learned <= limits.learned


def farthest(runs: Sequence[Apart]) -> Apart:
    """The largest distances of several runs."""
    loss, weights = max(run.loss for run in runs), max(runs, key=lambda run: run.learned)
    return weights._replace(loss=loss)


def run_limits(limits: Limits, rounding: Apart) -> Limits:
    """The limits of a whole float32 run.

    Where a unit is nearly 0, or two pixels of a pool are nearly equal, rounding decides the gradient's way, and later steps enlarge that.
    A run in float32 is as far from the exact one as rounding moves this network; two such runs may be twice as far from each other.

    Args:
        limits: Of float32.
        rounding: How far the CPU's run in float32 is from its run in float64.
    """
    return limits._replace(loss=max(limits.loss, 2 * rounding.loss), learned=max(limits.learned, 2 * rounding.learned))


def moved(tensors: Tensors, *, seed: int) -> dict[str, NDArray[Any]]:
    """Float tensors moved by at most one rounding step of float32, at random; others as they are."""
    random = np.random.default_rng(seed)
    step = float(np.finfo(np.float32).eps)
    return {name: np.asarray(_exact(tensor) * (1 + step * random.uniform(-1, 1, tensor.shape)), tensor.dtype)
            if np.issubdtype(tensor.dtype, np.floating) else tensor for name, tensor in tensors.items()}


def distance(found: Tensors, wanted: Tensors) -> Distance:
    """The largest distance of any tensor.

    Args:
        found: By name.
        wanted: The same names and shapes.
    Raises:
        ValueError: names or shapes differ.
    """
    if found.keys() != wanted.keys():
        raise ValueError(f"tensors {sorted(found.keys() ^ wanted.keys())} are on one side only; compare runs of the same network")
    shapes = [name for name in wanted if found[name].shape != wanted[name].shape]
    if shapes:
        raise ValueError(f"tensors {shapes} differ in their shapes; compare runs of the same network")
    floor = FLOOR * math.hypot(*(_norm(tensor) for tensor in wanted.values()))
    distances = [Distance(_relative(_norm(_exact(found[name]) - _exact(tensor)), max(_norm(tensor), floor)), name)
                 for name, tensor in wanted.items()]
    return max(distances, default=Distance(0.0, ""))


def loss_distance(found: Sequence[float], wanted: Sequence[float]) -> float:
    """The largest relative difference of the losses of any step.

    Raises:
        ValueError: there are unequally many.
    """
    if len(found) != len(wanted):
        raise ValueError(f"{len(found)} losses beside {len(wanted)}; compare runs of as many steps")
    return max((_relative(abs(one - other), abs(other)) for one, other in zip(found, wanted, strict=True)), default=math.inf)


def learned(end: Tensors, start: Tensors) -> dict[str, NDArray[Any]]:
    """What a run has added to the initial weights: beside the weights themselves a wrong step would hardly show."""
    return {name: _exact(end[name]) - _exact(start[name]) for name in end}


def _exact(tensor: NDArray[Any]) -> NDArray[np.float64]:
    return tensor.astype(np.float64)


def _norm(tensor: NDArray[Any]) -> float:
    return float(np.linalg.norm(_exact(tensor).ravel()))


def _relative(difference: float, size: float) -> float:
    """The quotient; NaN counts as infinite, and nothing beside nothing as 0."""
    if math.isnan(difference) or math.isnan(size):
        return math.inf
    if size == 0:
        return 0.0 if difference == 0 else math.inf
    return difference / size
