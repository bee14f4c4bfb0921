"""Networks of the user's own, known by name: functions that make a torch module for rows of given shapes.

    @sparkring.network                                          model:
    def wide(shapes, *, width=512):                               kind: tabular
        return nn.Sequential(nn.Linear(shapes.num_numeric, width),  network: wide
                             nn.ReLU(), nn.Linear(width, 1))        options: {width: 256}

A name runs nothing by itself: a config, a checkpoint or a model's card that names a network gets what the program registered, or an
error. Functions travel to ranks and Spark tasks as Spark ships every Python function (``carrying``).

What a function may return: ``own.py``. This module alone is what programs and launchers need, and does not load torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from torch import nn

    from sparkring.models.blocks import BlockList

Build: TypeAlias = "Callable[..., nn.Module | BlockList]"
Returned = TypeVar("Returned")
_KNOWN: dict[str, Build] = {}


def network(build: Build) -> Build:
    """Register a function under its own name; usable as a decorator.

    Args:
        build: Called with the ``Shapes`` of the rows and the config's ``model.options`` by name, and with ``dropout`` where
            ``model.dropout`` is above 0. It is called anew for each block that a rank holds, each time with the generator of that block:
            what it returns may depend on its arguments and torch's generator only.
    """
    _KNOWN[build.__name__] = build
    return build


def known() -> dict[str, Build]:
    """All that are registered in this process."""
    return dict(_KNOWN)


def carrying(fn: Callable[..., Returned]) -> Callable[..., Returned]:
    """``fn``, which brings the registered networks along to wherever it is called."""
    return partial(_called_with, known(), fn) if _KNOWN else fn


def _called_with(networks: Mapping[str, Build], fn: Callable[..., Returned], *args: Any, **named: Any) -> Returned:
    _KNOWN.update(networks)
    return fn(*args, **named)
