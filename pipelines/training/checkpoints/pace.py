"""When a checkpoint is begun: so early that it is committed before a failure could cost more steps than were asked for.

A checkpoint is written beside training, and counts once it is committed. Until then a failure goes back to the one before:

    steps       0 . . . . . . . . . . 100 . . . . . . . . . . 200        one every 100 steps, written in 12
    begun                         87|==========|    174|==========|      12 + 1 steps early
    committed                              99                186         at most 100 steps are ever done beyond the last

Where one takes longer to write than those before it, rank 0, without which no step is finished, waits for it at the last moment. That
cannot be had from storage so slow that writing takes more than half as many steps: checkpoints follow one on another then, nobody
waits, and a failure costs more than was asked for.

Pure: steps in, decisions out. Rank 0 asks it, and tells the others with the step (signals.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

RECENT = 4
"""Checkpoints whose writing says how long the next one may take."""


def lead(every: int, recent: Sequence[int]) -> int:
    """How many steps before it has to be committed a checkpoint is begun.

    Args:
        every: Steps that a failure may cost.
        recent: How many steps were done while each of the last checkpoints was written; nothing is known of the first one.
    """
    return max(recent) + 1 if recent else every // 2


class Pace:
    """Knows what was begun and committed, and how long it took."""

    def __init__(self, every: int, *, start: int = 0) -> None:
        """Begin after ``start`` steps, from a checkpoint or from nothing; ``every``: steps that a failure may cost."""
        self._every, self._begun = every, start
        self._committed: int | None = start
        self._recent: deque[int] = deque(maxlen=RECENT)

    def due(self, steps_done: int) -> bool:
        """Whether a checkpoint is to be begun after so many steps, if none is being written."""
        return steps_done - self._begun >= max(1, self._every - min(self._lead, self._every // 2))

    def begun(self, steps_done: int) -> None:
        """One has been begun, for whatever reason."""
        self._begun = steps_done

    def committed(self, at: int, *, steps: int, held: bool) -> None:
        """One is there.

        Args:
            at: Steps that it holds.
            steps: Done while it was written.
            held: Whether training waited for it: how many more it would have taken is not known, so as many are taken to be.
        """
        self._committed = at
        self._recent.append(2 * steps if held else steps)

    def failed(self) -> None:
        """One was not committed, so a failure costs more than was asked for until the next one is."""
        self._committed = None

    def holds(self, steps_done: int) -> bool:
        """Whether the checkpoint that is being written has to be there before another step is done."""
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
