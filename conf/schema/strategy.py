"""How ranks train together: ``train.strategy``, told apart by ``kind``; a kind alone may be given as a word (docs/adr/0011)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from sparkring.conf.schema.base.section import Positive, Section


class ExactConfig(Section):
    """Gradients are summed over all ranks in every step: the result equals training on one."""

    kind: Literal["exact"] = "exact"


class LocalSgdConfig(Section):
    """Each rank updates a model of its own; from time to time all take the mean of their models, by the rows that each learned from.

    Equal to ``exact`` only with one exchange a step, averaged optimizer state, and sgd without ``clip_norm``.
    """

    kind: Literal["local_sgd"] = "local_sgd"
    every_steps: Positive | None = None
    """Steps between two exchanges; null: one exchange, at each epoch's end. An epoch ends with an exchange in any case."""
    optimizer_state: Literal["average", "keep"] = "average"
    """What an exchange does with the optimizer's state, such as momentum: ``average`` it as the weights, or let each rank ``keep`` its
    own, which halves what is sent with momentum. A run that resumes then gives all ranks rank 0's."""


class StaleSyncConfig(Section):
    """Ranks take steps as they become free, and update weights that servers hold, without waiting for each other."""

    kind: Literal["stale_sync"] = "stale_sync"
    bound: Annotated[int, Field(ge=0)] = 4
    """Largest staleness of an update: the number of others applied between the pull of its weights and its own application. 0: one step
    at a time, as on one rank."""
    servers: Literal["peers"] | Positive = "peers"
    """``peers``: each rank serves a part of the model beside computing. A number: so many ranks, the last ones, do nothing else."""
    stale_lr: Literal["constant", "inverse"] = "constant"
    """Learning rate of a stale update: ``constant`` as of any other; ``inverse`` divides it by 1 + staleness."""


def in_full(value: object) -> object:
    """The section that a word stands for; a section as it is."""
    return {"kind": value} if isinstance(value, str) else value


def _kind(value: object) -> object:
    """The ``kind`` of a strategy; default exact."""
    return value.get("kind", "exact") if isinstance(value, dict) else getattr(value, "kind", None)


StrategyConfig = Annotated[
    Annotated[ExactConfig, Tag("exact")] | Annotated[LocalSgdConfig, Tag("local_sgd")] | Annotated[StaleSyncConfig, Tag("stale_sync")],
    Discriminator(_kind, custom_error_type="kind", custom_error_message="unknown kind; give exact, local_sgd or stale_sync"),
    BeforeValidator(in_full)]
"""Any of the strategies, told apart by ``kind``."""
