"""What ``sparkring search`` tries: ``search``, with a range or choices for each key that it varies."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from sparkring.conf.schema.base.section import Positive, Section, Seed
from sparkring.conf.schema.train import HeldOutMetric


class SearchedKey(Section):
    """The values of one key: a range from ``low`` to ``high``, or ``choices``."""

    low: int | float | None = None
    """Least value. With whole numbers for ``low``, ``high`` and ``step``, only whole numbers are tried."""
    high: int | float | None = None
    """Largest value."""
    log: bool = False
    """Try orders of magnitude equally often, as for learning rates."""
    step: Annotated[int | float, Field(gt=0)] | None = None
    """Distance between values; a whole number of steps leads from ``low`` to ``high``. Null: any value of the range."""
    choices: tuple[JsonValue, ...] = ()
    """Values to choose from, e.g. ``[sgd, adamw]`` or ``[[64], [128, 64]]``."""

    @model_validator(mode="after")
    def _holds_values(self) -> Self:
        ranged = self.low is not None or self.high is not None
        if bool(self.choices) == ranged:
            raise ValueError(f"found {'both a range and choices' if ranged else 'no values'}; give low and high, or choices")
        if self.choices and (len(self.choices) < 2 or self.log or self.step is not None):
            raise ValueError(f"choices={list(self.choices)} have neither log nor step, and there are at least two of them; leave log and "
                             "step out, or set a single value where the key itself stands")
        if ranged and (self.low is None or self.high is None or self.low >= self.high):
            raise ValueError(f"the range from {self.low} to {self.high} holds no value; give low below high")
        if self.low is not None and self.high is not None and self.step is not None and self.step > self.high - self.low:
            raise ValueError(f"step={self.step} leads out of the range from {self.low} to {self.high}, which then holds one value; give a "
                             "smaller one")
        ends = self._ends_of_steps()
        if self.high is not None and len(ends) > 1:
            raise ValueError(f"steps of {self.step} from {self.low} miss high={self.high}; set high to {ends[0]} or {ends[1]}")
        if self.log and (self.low is None or self.low <= 0 or self.step is not None):
            raise ValueError(f"log needs a range above 0 without step, found low={self.low} and step={self.step}; raise low, or leave log "
                             "or step out")
        return self

    def _ends_of_steps(self) -> tuple[Decimal, ...]:
        """The values nearest to ``high`` on both sides that whole steps lead to; only ``high`` if they lead there. Exact in decimals."""
        if self.low is None or self.high is None or self.step is None:
            return ()
        low, high, step = (Decimal(str(value)) for value in (self.low, self.high, self.step))
        below = low + (high - low) // step * step
        return (high,) if below == high else (below, below + step)

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are tried."""
        return all(isinstance(value, int) for value in (self.low, self.high, self.step or 1))


class SearchConfig(Section):
    """A search for the best values of some keys: each trial trains a run of its own."""

    space: dict[str, SearchedKey] = {}
    """Values by key of ``model`` and ``train``, e.g. ``train.optimizer.lr: {low: 1e-4, high: 0.1, log: true}``."""
    trials: Positive = 20
    """Trainings, those of earlier calls included."""
    at_once: Positive | None = None
    """Trials that train at once, each on ``train.num_ranks`` slots; null: as many as there are slots for.
    ``launcher: horovod.spark`` runs one at a time."""
    metric: HeldOutMetric = "loss"
    """Held-out metric of the best epoch that is to be as good as possible."""
    sampler: Literal["tpe", "random"] = "tpe"
    """``tpe``: values that resemble those of good trials (Optuna's tree-structured Parzen estimator)."""
    pruner: Literal["none", "median", "hyperband"] = "median"
    """Which trials end early, after an epoch. median: those worse than the median of the others so far. hyperband: several rounds of
    halving."""
    seed: Seed = 1
    """Seed of the sampler. With several trials at once the values also depend on the order in which trials end."""
