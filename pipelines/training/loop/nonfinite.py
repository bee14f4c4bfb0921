"""Steps whose loss or gradient is not finite: the run stops, skips them, or goes back to the last checkpoint.

``train.on_nonfinite`` chooses. All ranks see the same sums, so all of them do the same. Ranks that are not in lock-step have left such
steps out already when they learn of each other's; their runs do not go back.
"""

from __future__ import annotations

import math

from sparkring.errors import NotFinite
from sparkring.pipelines.training.checkpoints.documents import Position
from sparkring.pipelines.training.loop.rollbacks import Rollbacks
from sparkring.pipelines.training.loop.setup import RankSetup
from sparkring.pipelines.training.strategies.signals import Signals
from sparkring.pipelines.training.strategies.step import Spoiled, StepResult
from sparkring.pipelines.training.strategies.step_times import StepCost

LEFT_OUT = StepResult(loss=math.nan, weight=0.0, signals=Signals(), updated=False, cost=StepCost(compute_s=0.0, comm_s=0.0))
"""The result of a step whose rows are read but not learned from; the ranks exchange no signals in it."""


class NonFiniteSteps:
    """Decides what follows a step that was not finite."""

    def __init__(self, setup: RankSetup) -> None:
        train = setup.config.train
        self._policy, self._limit = train.on_nonfinite, train.recovery.rollbacks
        self._events, self._is_first = setup.events, setup.is_first
        self._rollbacks = Rollbacks(self._limit)
        self._failure = ""

    @property
    def needs_checkpoint(self) -> bool:
        """Whether a run needs a checkpoint before its first step, to be able to go back to it."""
        return self._policy == "rollback"

    @property
    def wants_rollback(self) -> bool:
        """Whether the run must go back to its last checkpoint now."""
        return bool(self._failure)

    def leaves_out(self, step: int) -> bool:
        """Whether optimizer step ``step``, counted from the run's beginning, is read but not learned from."""
        return self._rollbacks.leaves_out(step)

    def handle(self, position: Position, result: StepResult) -> None:
        """Take note of the step at ``position``, which did not update the model.

        Raises:
            NotFinite: the run must stop at such a step.
        """
        cause = f"the loss is {result.loss}" + (", but a gradient is NaN or infinite" if math.isfinite(result.loss) else "")
        failure = f"step {position.step} of epoch {position.epoch}: {cause}"
        if self._policy == "stop":
            raise NotFinite(f"{failure}; nothing was updated. Lower train.optimizer.lr, set train.optimizer.clip_norm, check the rows "
                            "of that step, or set train.on_nonfinite=skip to continue without them.")
        if self._policy == "rollback":
            self._failure = failure
        elif self._is_first:
            self._events.write("warning", text=f"{failure}; skipped")

    def handle_late(self, epoch: int, spoiled: Spoiled) -> None:
        """Take note of steps that their ranks have left out, once all ranks know of them.

        Raises:
            NotFinite: the run must stop at such a step.
        """
        found = f"{spoiled.steps} of the ranks' steps since step {spoiled.since} of epoch {epoch} had a loss or gradient that is not finite"
        if self._policy == "stop":
            raise NotFinite(f"{found}; they were left out. Lower train.optimizer.lr, set train.optimizer.clip_norm, check the rows "
                            "of those steps, or set train.on_nonfinite=skip to continue without them.")
        if self._is_first:
            self._events.write("warning", text=f"{found}; left out")

    def roll_back(self, position: Position, to: Position | None) -> str:
        """Count one more rollback.

        Args:
            position: The position after the failed step.
            to: The last checkpoint; None if there is none.
        Returns:
            The failure and the action taken, for the event.
        Raises:
            NotFinite: there is no checkpoint, or the run has gone back to it often enough.
        """
        failure, self._failure = self._failure, ""
        action = self._rollbacks.back(to=to.steps_done, spoiled=position.steps_done - 1) if to else None
        if action is None:
            reason = f"train.recovery.rollbacks={self._limit} is used up" if to else "there is no checkpoint"
            raise NotFinite(f"{failure}; {reason}, so the run does not go back again. Lower train.optimizer.lr, set "
                            "train.optimizer.clip_norm, or check the rows of that step.")
        return f"{failure}; {action}"
