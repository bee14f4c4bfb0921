"""The faults of a run and their times, drawn from a seed: the same seed strikes at the same steps again.

    kill      a rank is killed (SIGKILL)
    worker    Spark's Python process, whose child the rank is, is killed
    suspend   a rank hangs forever (SIGSTOP), as on a machine that swaps or has lost its disk
    delay     a rank hangs for a while
    corrupt   one bit of the next checkpoint is flipped, and rank 0, which committed it, is killed
    disk      a rank's next checkpoints find no space on the device

Pure: a plan of faults; ``injector.py`` injects them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict

from sparkring.errors import ConfigError, nearest

Kind: TypeAlias = Literal["kill", "worker", "suspend", "delay", "corrupt", "disk"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ENDING: frozenset[Kind] = frozenset({"kill", "worker", "suspend", "corrupt"})
"""The kinds that end a generation of the ring; it survives the others."""
DELAY_S = 2.0
"""Seconds that a rank hangs with ``delay``."""
FAILED_WRITES = 2
"""Checkpoints that find no space with ``disk``."""
FIRST, LAST = 0.02, 0.95
"""Faults strike between these shares of a run's steps."""
LATEST_S = 0.3
"""The most seconds between a step's end and the strike: it may fall into any part of a step or of a checkpoint's writing."""


class Fault(BaseModel):
    """One planned fault."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    kind: Kind
    share: float
    """The share of the run's optimizer steps after which it is due."""
    victim: float
    """From 0 to 1: the share of ranks before the one that is struck, whatever the ring's size is then."""
    delay_s: float = 0.0
    """Seconds between the end of that step and the strike."""

    def due(self, total_steps: int) -> int:
        """Optimizer steps after which it strikes."""
        return min(max(1, round(self.share * total_steps)), total_steps - 1)

    def rank(self, size: int) -> int:
        """The rank that is struck, of ``size`` ranks."""
        return 0 if self.kind == "corrupt" else min(int(self.victim * size), size - 1)


class Strike(BaseModel):
    """One fault that has struck."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    kind: Kind
    rank: int
    host: str
    generation: int
    steps: int
    """Optimizer steps that the rank had done since the run began."""
    time: float
    """Seconds since 1970."""


def draw(num_faults: int, *, seed: int, kinds: Sequence[str] = KINDS) -> tuple[Fault, ...]:
    """Draw faults, evenly over the run and over the kinds, each somewhere within its share of the run.

    Args:
        num_faults: Number of faults, at least 1.
        seed: Determines the draw.
        kinds: The kinds to draw from.
    Returns:
        The faults, ordered by when they are due.
    Raises:
        ConfigError: there is no such kind, or no fault is asked for.
    """
    if num_faults < 1:
        raise ConfigError(f"{num_faults} faults were asked for; ask for at least 1.")
    chosen = [_kind(word) for word in kinds]
    if not chosen:
        raise ConfigError(f"no kind of fault is named; name some of {', '.join(KINDS)}.")
    drawn = random.Random(seed)  # noqa: S311 (nothing is secret here)
    dealt = [chosen[number % len(chosen)] for number in range(num_faults)]
    drawn.shuffle(dealt)
    width = (LAST - FIRST) / num_faults
    return tuple(Fault(number=number, kind=kind, share=FIRST + width * (number + drawn.random()), victim=drawn.random(),
                       delay_s=drawn.uniform(0.0, LATEST_S)) for number, kind in enumerate(dealt))


def _kind(word: str) -> Kind:
    for kind in KINDS:
        if word == kind:
            return kind
    raise ConfigError(f"there is no fault {word!r}{nearest(word, KINDS)}; name some of {', '.join(KINDS)}.")
