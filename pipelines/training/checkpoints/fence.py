"""Which checkpoints count when a life of the ring that is over still commits one: a rank that hung in an upload, a host that was cut off.

    <run>/checkpoints/fences/<generation>-<steps>.json     a generation has begun, after so many steps

    generation 3    ... 100 committed .... 150 hangs in an upload ........................ tries to commit 150
    generation 4              goes on from 100, which its fence says .... 130 committed

Before it commits, rank 0 looks for the fence of a later generation, and gives up where there is one. It may hang between the look and
the commit; therefore documents are named by their generation, so that a later one of as many steps stays, and readers look too: what
generation 3 has beyond 100 steps does not count, whenever it came. Nor does it delete what later ones wrote.

Names alone say everything, so a look is one listing. Pure but for those who list and put.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

Fences: TypeAlias = frozenset[tuple[int, int]]
"""(generation, steps after which it began)."""


def fence_name(generation: int, steps: int) -> str:
    """The document that says that a generation has begun, after so many steps."""
    return f"{generation}-{steps}.json"


def fences_of(names: Iterable[str]) -> Fences:
    """Those that the names of a folder stand for."""
    matches = (re.fullmatch(r"([0-9]{1,18})-([0-9]{1,18})\.json", name) for name in names)
    return frozenset((int(match[1]), int(match[2])) for match in matches if match)


def later(fences: Fences, generation: int) -> int | None:
    """The latest generation after this one, or None."""
    return max((found for found, _ in fences if found > generation), default=None)


def void_by(fences: Fences, *, generation: int, steps: int) -> tuple[int, int] | None:
    """The fence by which a generation's checkpoint after so many steps does not count, or None where it does."""
    return min(((found, began) for found, began in fences if found > generation and began < steps), default=None)
