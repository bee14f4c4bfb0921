"""When a checkpoint is begun: early enough that it is committed before a failure could cost more steps than were asked for.

A checkpoint is written beside training, and counts once it is committed. Until then a failure returns to the one before:

    steps       0 . . . . . . . . . . 100 . . . . . . . . . . 200        one every 100 steps, written in 12
    begun                         87|==========|    174|==========|      12 + 1 steps early
    committed                              99                186         at most 100 steps are ever done beyond the last

If one takes longer to write than those before it, rank 0 waits for it at the last moment, and no step ends without rank 0. If writing
takes more than half as many steps as a failure may cost, the storage is too slow for that: then each checkpoint begins when the one
before has ended, nobody waits, and a failure costs more than was asked for.

Pure: steps in, decisions out. Rank 0 asks it, and sends the answer to the others with the step (signals.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

RECENT = 4
"""Number of last checkpoints whose writing predicts the next one's."""


def lead(every: int, recent: Sequence[int]) -> int:
    """Number of steps by which a checkpoint is begun before it has to be committed.

    Args:
        every: Steps that a failure may cost.
        recent: Steps that were done while each of the last checkpoints was written; empty before the first one.
    """
    return max(recent) + 1 if recent else every // 2


class Pace:
    """Keeps count of the checkpoints that were begun and committed, and of the steps that writing took."""

    def __init__(self, every: int, *, start: int = 0) -> None:
        """Begin after ``start`` steps, from a checkpoint or from nothing; ``every``: steps that a failure may cost."""
        self._every, self._begun = every, start
        self._committed: int | None = start
        self._recent: deque[int] = deque(maxlen=RECENT)

    def due(self, steps_done: int) -> bool:
        """Whether to begin a checkpoint after so many steps, if none is being written."""
        return steps_done - self._begun >= max(1, self._every - min(self._lead, self._every // 2))

    def begun(self, steps_done: int) -> None:
        """Note that a checkpoint was begun."""
        self._begun = steps_done

    def committed(self, at: int, *, steps: int, held: bool) -> None:
        """Note that a checkpoint was committed.

        Args:
            at: Steps that it holds.
            steps: Steps done while it was written.
            held: Whether training waited for it. The steps that it would have taken are then unknown; twice ``steps`` are assumed.
        """
        self._committed = at
        self._recent.append(2 * steps if held else steps)

    def failed(self) -> None:
        """Note that a checkpoint was not committed: until the next one is, a failure costs more than was asked for."""
        self._committed = None

    def holds(self, steps_done: int) -> bool:
        """Whether the checkpoint that is being written must be committed before another step is done."""
        fits = self._lead <= self._every // 2
        return fits and self._committed is not None and steps_done - self._committed >= self._every

    @property
    def cost(self) -> int:
        """Steps that a failure may cost, with checkpoints that take as long to write as the last ones."""
        longest = max(self._recent, default=0)
        return max(self._every, max(longest, self._every - self._every // 2) + longest)

    @property
    def _lead(self) -> int:
        return lead(self._every, self._recent)
