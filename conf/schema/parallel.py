"""How a model is laid over the ranks: ``train.parallel``. One stage is plain data parallelism."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from sparkring.conf.schema.base.section import Positive, Section

Recompute = Literal["never", "always", "except_last"]
"""Which micro-batches compute their forward pass again before the backward pass; ``except_last``: all but the last of
each worker."""
MOST_FIRST: tuple[Recompute, ...] = ("always", "except_last", "never")
ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zero_bubble"]
TransportName = Literal["sidecar", "horovod"]
AUTO = "auto"
MOST_MICRO_BATCHES = 1 << 14
"""Most micro-batches whose messages can be told apart in one step."""
BETWEEN_STAGES = ("schedule", "transport", "chunks_per_stage")
"""Keys that matter only between stages."""
KEPT_BY_AUTO = ("micro_batches", "dynamic_shapes")
"""Keys that may be given beside ``auto``."""


def _one_or_several(value: object) -> object:
    """Turn a single word into a tuple."""
    return (value,) if isinstance(value, str) else value


class ParallelConfig(Section):
    """Stages, their replicas, and the schedule by which micro-batches pass through them; or the one word ``auto``."""

    auto: bool = False
    """Let the planner choose all keys below, for up to num_ranks ranks, from measurements on them. ``parallel: auto``
    is the same. micro_batches and dynamic_shapes may be given beside it. So may replicas (with shards): then the
    planner chooses the rest, the cut of the model and the schedule among it."""
    replicas: tuple[Positive, ...] = ()
    """Copies of each stage, e.g. ``[2, 1]``: two stages, the first of them twice. Their sum times shards is
    num_ranks. Empty: one stage on all ranks."""
    shards: Positive = 1
    """Ranks that share each copy of a stage (tensor parallelism): heads, hidden units and vocabulary are divided
    among them. Text only."""
    micro_batches: Annotated[Positive, Field(le=MOST_MICRO_BATCHES)] | None = None
    """Parts of a step's rows, over all replicas: a multiple of each stage's replicas. Default: one per replica; with
    several stages four per stage, rounded up."""
    schedule: ScheduleName = "1f1b"
    """Order in which stages compute and exchange micro-batches (docs/how-to/stages.md)."""
    chunks_per_stage: Positive = 1
    """Runs of blocks per stage; more than one only with ``interleaved``."""
    cut: tuple[Positive, ...] | tuple[str, ...] = ()
    """Blocks of each stage (or chunk), e.g. ``[3, 2]``, or the name of the first block of each stage but the first.
    Empty: equally many each."""
    transport: TransportName = "sidecar"
    """Carries activations. sidecar: shared memory and TCP connections beside Horovod. horovod: Horovod's own process
    sets."""
    dynamic_shapes: bool = False
    """Whether tensors between stages may differ in shape from one micro-batch to the next. If not, shapes are
    exchanged once and checked, and a message holds the tensors alone."""
    recompute: Annotated[tuple[Recompute, ...], BeforeValidator(_one_or_several), Field(min_length=1)] = ("never",)
    """Activation checkpointing: the micro-batches that repeat their forward pass instead of keeping its results
    (never, always, except_last). One word for all stages, or one for each, e.g. ``[always, never]``: early stages
    hold the most."""
    shard_optimizer: bool = False
    """Keep each parameter's optimizer state on one replica of its stage only (ZeRO-1)."""

    @property
    def pipelined(self) -> bool:
        """Whether this is more than plain data parallelism; unknown for ``auto`` before a layout is chosen."""
        asked = (len(self.replicas) > 1, self.shards > 1, self.micro_batches is not None, self.chunks_per_stage > 1, bool(self.cut),
                 set(self.recompute) != {"never"}, self.shard_optimizer)
        return not self.auto and any(asked)

    def recompute_of(self, stage: int) -> Recompute:
        """The word for one stage."""
        return self.recompute[stage if len(self.recompute) > 1 else 0]

    def recompute_over(self, stages: int) -> tuple[Recompute, ...]:
        """The words for another number of stages: if each had its own, all get the one that takes the least memory,
        since stages may grow.
        """
        if len(self.recompute) in (1, stages):
            return self.recompute
        return (next(mode for mode in MOST_FIRST if mode in self.recompute),)

    @model_validator(mode="before")
    @classmethod
    def _a_word_for_auto(cls, value: object) -> object:
        return {"auto": True} if value == AUTO else value

    @model_validator(mode="after")
    def _auto_chooses(self) -> Self:
        fields = type(self).model_fields
        kept = ("auto", *KEPT_BY_AUTO, "replicas", *(["shards"] if self.replicas else []))
        chosen = [f"train.parallel.{name}" for name in fields if name not in kept and getattr(self, name) != fields[name].default]
        if self.auto and chosen:
            raise ValueError(f"train.parallel=auto chooses {', '.join(chosen)} itself; leave that out, or auto")
        return self

    @model_validator(mode="after")
    def _each_stage_has_its_own(self) -> Self:
        stages = max(1, len(self.replicas))
        if len(self.recompute) not in (1, stages):
            raise ValueError(f"train.parallel.recompute={list(self.recompute)} is for {len(self.recompute)} stages, "
                             f"train.parallel.replicas={list(self.replicas)} for {stages}; give one word for all stages, or one for each")
        return self

    @property
    def cuts_the_model(self) -> bool:
        """Whether no rank holds the whole model."""
        return len(self.replicas) > 1 or self.shards > 1

    @model_validator(mode="after")
    def _schedules_need_stages(self) -> Self:
        fields = type(self).model_fields
        idle = [f"train.parallel.{name}={getattr(self, name)}" for name in BETWEEN_STAGES if getattr(self, name) != fields[name].default]
        if idle and len(self.replicas) <= 1 and not self.auto:
            raise ValueError(f"{' and '.join(idle)} would have no effect: train.parallel.replicas={list(self.replicas)} is one stage; "
                             "leave that out, or give replicas of several stages, e.g. [1, 1]")
        return self

    @model_validator(mode="after")
    def _chunks_are_interleaved(self) -> Self:
        if self.chunks_per_stage > 1 and self.schedule != "interleaved":
            raise ValueError(f"train.parallel.chunks_per_stage={self.chunks_per_stage} needs the schedule interleaved, found "
                             f"{self.schedule}; set train.parallel.schedule=interleaved, or leave chunks_per_stage out")
        return self
