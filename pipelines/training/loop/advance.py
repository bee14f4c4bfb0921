"""How an epoch's steps are done: the interface between the loop and the two ways to do them.

    LockStep      all ranks do each step together (lock_step.py)
    DealtSteps    each step is done by whichever rank is free (dealt_steps.py)
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from sparkring.pipelines.training.checkpoints.documents import Position


class Advance(NamedTuple):
    """How far the run has come; the same on all ranks."""

    position: Position
    """After some steps, at which all ranks hold the same model, or one that they exchange next."""
    due: bool
    """Whether to save a checkpoint now."""
    stopping: bool
    """Whether some rank was asked to stop."""


class Steps(Protocol):
    """The rest of an epoch."""

    def advance(self, position: Position) -> Advance:
        """Do the next step or steps after ``position``."""
        ...

    def close(self) -> None:
        """End the threads that read rows."""
        ...
