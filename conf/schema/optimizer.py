"""The optimizer and its learning-rate schedule: ``train.optimizer``."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sparkring.conf.schema.base.section import Positive, Section, Share

OptimizerName = Literal["sgd", "adagrad", "rmsprop", "adam", "adamw", "lars"]
Beta = Annotated[float, Field(ge=0, lt=1)]
_OF: dict[str, tuple[str, ...]] = {
    "momentum": ("sgd", "rmsprop", "lars"), "nesterov": ("sgd",), "betas": ("adam", "adamw"), "smoothing": ("rmsprop",),
    "trust": ("lars",), "eps": ("adagrad", "rmsprop", "adam", "adamw")}
"""The optimizers that a key is of."""
_OF_SCHEDULE: dict[str, tuple[str, ...]] = {
    "milestones": ("step",), "decay": ("step",), "peak_at": ("one_cycle",), "start_share": ("one_cycle",), "end_share": ("one_cycle",),
    "warmup_steps": ("constant", "cosine", "step")}
"""The schedules that a key is of."""
_PASSED_OVER = {("momentum", "adam"), ("momentum", "adamw")}
"""Keys that these optimizers have always been given without effect: configs and runs with them stay what they are."""


class OptimizerConfig(Section):
    """The optimizer and its learning-rate schedule."""

    name: OptimizerName = "adamw"
    """PyTorch's optimizer of that name; ``lars`` scales the rate of each layer by the norms of its weights and gradient, for large
    batches."""
    lr: Annotated[float, Field(gt=0)] = 1e-3
    """Peak learning rate, for the batch that ``scaling`` names; never scaled by the number of ranks, since the global batch does not depend
    on it."""
    scaling: Literal["none", "linear", "sqrt"] = "none"
    """With ``linear`` or ``sqrt``, ``lr`` is for steps of ``scaling_rows`` rows, and is multiplied by ``batch_rows / scaling_rows`` or its
    square root. none: it is for any batch."""
    scaling_rows: Positive | None = None
    """The batch that ``lr`` was found for."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of sgd, rmsprop and lars; adam and adamw ignore it."""
    nesterov: bool = False
    """Nesterov's momentum, of sgd."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay of the running means of gradient and squared gradient, of adam and adamw."""
    smoothing: Beta = 0.99
    """Decay of the running mean of the squared gradient, of rmsprop (PyTorch's ``alpha``)."""
    trust: Annotated[float, Field(gt=0)] = 1e-3
    """Trust coefficient of lars: a layer moves by about this share of its norm times ``lr``."""
    eps: Annotated[float, Field(gt=0)] | None = None
    """Added to the denominator of adagrad, rmsprop, adam and adamw; null: PyTorch's default."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """PyTorch's ``weight_decay``; of lars for layers with matrices only."""
    schedule: Literal["constant", "cosine", "step", "one_cycle"] = "cosine"
    """``cosine`` falls to zero over the run after the warm-up. ``step`` multiplies the rate by ``decay`` at each of ``milestones``.
    ``one_cycle`` rises to the peak and falls below its start."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps over which the rate rises linearly from zero."""
    milestones: tuple[Share, ...] = (0.5, 0.75)
    """Of ``step``: the shares of the run's steps after which the rate falls, ascending."""
    decay: Share = 0.1
    """Of ``step``: the factor at each milestone."""
    peak_at: Share = 0.3
    """Of ``one_cycle``: the share of the run's steps in which the rate rises."""
    start_share: Share = 0.04
    """Of ``one_cycle``: the first rate, as a share of the peak."""
    end_share: Share = 4e-6
    """Of ``one_cycle``: the last rate, as a share of the peak."""
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    """Largest norm of the gradient over the whole model; a larger gradient is scaled down. Null: no limit."""

    @model_validator(mode="after")
    def _no_key_is_passed_over(self) -> Self:
        for keys, chosen, what in ((_OF, self.name, "name"), (_OF_SCHEDULE, self.schedule, "schedule")):
            for key, of in keys.items():
                value, default = getattr(self, key), type(self).model_fields[key].default
                if value != default and chosen not in of and (key, chosen) not in _PASSED_OVER:
                    raise ValueError(f"train.optimizer.{key}={value} has no effect with {what} {chosen}; it is of {', '.join(of)}: "
                                     "leave it out, or choose one of those")
        return self

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and not self.momentum:
            raise ValueError("train.optimizer.nesterov looks ahead along the momentum, which is 0; set train.optimizer.momentum, "
                             "e.g. to 0.9")
        return self

    @model_validator(mode="after")
    def _milestones_ascend(self) -> Self:
        if any(before >= after for before, after in pairwise(self.milestones)):
            raise ValueError(f"train.optimizer.milestones={list(self.milestones)} do not ascend; sort them and leave doubles out")
        return self

    @model_validator(mode="after")
    def _scaled_from_a_batch(self) -> Self:
        if (self.scaling == "none") != (self.scaling_rows is None):
            raise ValueError(f"train.optimizer.scaling={self.scaling} and scaling_rows={self.scaling_rows}: the rule needs the batch that "
                             "lr was found for; give both or neither")
        return self

    @property
    def needs_whole_layers(self) -> bool:
        """Whether a step takes the norm of a layer, of which a tensor-parallel shard has a part."""
        return self.name == "lars"

    def peak_lr(self, batch_rows: int) -> float:
        """The peak learning rate for steps of so many rows.

        Source: Goyal et al., "Accurate, large minibatch SGD", 2017 (linear); Krizhevsky, "One weird trick for parallelizing convolutional
        neural networks", 2014 (square root).
        """
        if self.scaling_rows is None:
            return self.lr
        ratio = batch_rows / self.scaling_rows
        return self.lr * (ratio if self.scaling == "linear" else math.sqrt(ratio))
