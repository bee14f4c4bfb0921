"""The cost of a rank's steps: seconds of its own work, and seconds of waiting for other ranks.

    CPU     step 5 |compute|wait|compute|update|                  its cost is known at its end
    CUDA    step 5 |compute|wait|compute|update ...               its cost is known at the end of step 6, which reports it: to wait
            step 6                       .. update|compute|wait|  for the update would leave the device without work
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from sparkring.pipelines.parallel.clock import Clock, Mark

Span = tuple[Mark, Mark]
"""The marks between which a rank did one thing."""


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step."""

    compute_s: float
    comm_s: float


class StepTimes:
    """Turns the marks of steps into their costs, without waiting for the device."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._steps: deque[tuple[Mark, Mark, Sequence[Span]]] = deque()

    def end(self, began: Mark, waits: Sequence[Span]) -> StepCost:
        """Note the end of a step.

        Args:
            began: Its beginning.
            waits: Its waits for other ranks.
        Returns:
            The cost of the oldest step that was not reported yet: on a CPU this one, on a GPU the one before; 0 while there is none.
        """
        self._steps.append((began, self.clock.mark(), waits))
        if not self.clock.passed(self._steps[0][1]):
            return StepCost(0.0, 0.0)
        began, ended, waits = self._steps.popleft()
        wait_s = sum(self.clock.seconds(*span) for span in waits)
        return StepCost(self.clock.seconds(began, ended) - wait_s, wait_s)
