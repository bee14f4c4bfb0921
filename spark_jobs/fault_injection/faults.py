"""Which faults a run is to meet, and when: drawn from a seed, so that the same seed strikes at the same steps again.

    kill      a rank is killed (SIGKILL)
    worker    Spark's Python process, whose child the rank is, is killed
    stop      a rank stands still for ever (SIGSTOP), as on a machine that swaps or has lost its disk
    delay     a rank stands still for a while
    corrupt   once the next checkpoint is there a bit of it is flipped, and rank 0, which committed it, killed
    disk      a rank's next checkpoints find no space on the device

Pure: says what is to happen; ``injector.py`` does it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict

from sparkring.errors import ConfigError, nearest

Kind: TypeAlias = Literal["kill", "worker", "stop", "delay", "corrupt", "disk"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ENDING: frozenset[Kind] = frozenset({"kill", "worker", "stop", "corrupt"})
"""Those that end a generation of the ring; a run lives on through the others."""
DELAY_S = 2.0
"""How long a rank stands still by ``delay``."""
FAILED_WRITES = 2
"""Checkpoints that find no space by ``disk``."""
FIRST, LAST = 0.02, 0.95
"""Shares of a run's steps between which it is struck."""
LATEST_S = 0.3
"""Most seconds between a step's end and the strike: so it falls into any part of a step, and into the writing of a checkpoint."""


class Fault(BaseModel):
    """One fault that is to happen."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    number: int
    kind: Kind
    share: float
    """Of the run's optimizer steps, after which it is due."""
    victim: float
    """From 0 to 1: this share of the ranks is before the one that is struck, however many there are by then."""
    delay_s: float = 0.0
    """Seconds between the end of that step and the strike."""

    def due(self, total_steps: int) -> int:
        """Optimizer steps after which it strikes."""
        return min(max(1, round(self.share * total_steps)), total_steps - 1)

    def rank(self, size: int) -> int:
        """Who is struck, of ``size`` ranks."""
        return 0 if self.kind == "corrupt" else min(int(self.victim * size), size - 1)


class Strike(BaseModel):
    """One fault that has happened."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

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
        num_faults: At least 1.
        seed: Of the draw.
        kinds: Those that may come.
    Returns:
        By when they are due.
    Raises:
        ConfigError: there is no such kind, or none at all is asked for.
    """
    if num_faults < 1:
        raise ConfigError(f"{num_faults} faults are none; ask for at least 1.")
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
