"""How a model is laid over the ranks: ``train.parallel``. One stage is plain data parallelism."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from sparkring.conf.schema.section import Positive, Section

Recompute = Literal["never", "always", "except_last"]
"""Which micro-batches compute their forward pass again before the backward pass; ``except_last``: all but the last of each worker."""
MOST_FIRST: tuple[Recompute, ...] = ("always", "except_last", "never")
AUTO = "auto"
MOST_MICRO_BATCHES = 1 << 14
"""What messages of a step can be told apart by."""
BETWEEN_STAGES = ("schedule", "transport", "chunks_per_stage")
"""What one stage has no use for."""
KEPT_BY_AUTO = ("micro_batches", "dynamic_shapes")
"""What may be given beside ``auto``, and stays."""


def _one_or_several(value: object) -> object:
    """A word alone is a list of one."""
    return (value,) if isinstance(value, str) else value


class ParallelConfig(Section):
    """Stages, their replicas, and the schedule by which micro-batches pass through them; or the one word ``auto``."""

    auto: bool = False
    """Let the planner choose all below, for up to num_ranks ranks and by what it measures on them. ``parallel: auto`` says the same;
    micro_batches and dynamic_shapes may be given beside it, and replicas (with shards): then it chooses how to cut the model, by time and
    so that it fits, the schedule and the rest."""
    replicas: tuple[Positive, ...] = ()
    """Copies of each stage, e.g. ``[2, 1]``: two stages, the first one twice. Times shards, they add up to num_ranks. Empty: one stage
    on all ranks."""
    shards: Positive = 1
    """Ranks among which each copy of a stage is dealt, layer by layer (tensor parallelism): heads, hidden units, vocabulary. Text only."""
    micro_batches: Annotated[Positive, Field(le=MOST_MICRO_BATCHES)] | None = None
    """Parts that a step's rows are cut into, over all replicas: a multiple of each stage's replicas. Default: one a replica; with several
    stages four times as many as there are stages, rounded up."""
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero_bubble"] = "1f1b"
    chunks_per_stage: Positive = 1
    """Runs of blocks a stage; more than one only with ``interleaved``."""
    cut: tuple[Positive, ...] | tuple[str, ...] = ()
    """Blocks of each stage (or chunk), e.g. ``[3, 2]``, or the first block of each but the first by name. Empty: as many each."""
    transport: Literal["sidecar", "horovod"] = "sidecar"
    """What carries activations: shared memory and Gloo sockets beside Horovod, or Horovod's own process sets."""
    dynamic_shapes: bool = False
    """Whether what crosses a border may have another shape in each micro-batch. If not, micro-batches of as many rows must be alike:
    their shapes are told once and checked, and a message is its tensors alone."""
    recompute: Annotated[tuple[Recompute, ...], BeforeValidator(_one_or_several), Field(min_length=1)] = ("never",)
    """Activation checkpointing: the micro-batches whose forward pass is done again instead of kept (never, always, except_last). One word
    for all stages, or one for each, e.g. ``[always, never]``: early stages hold most."""
    shard_optimizer: bool = False
    """Keep each parameter's optimizer state on one replica of its stage only (ZeRO-1)."""

    @property
    def pipelined(self) -> bool:
        """Whether this is more than plain data parallelism; not known of ``auto`` before a layout was chosen."""
        asked = (len(self.replicas) > 1, self.shards > 1, self.micro_batches is not None, self.chunks_per_stage > 1, bool(self.cut),
                 set(self.recompute) != {"never"}, self.shard_optimizer)
        return not self.auto and any(asked)

    def recompute_of(self, stage: int) -> Recompute:
        """What one stage does."""
        return self.recompute[stage if len(self.recompute) > 1 else 0]

    def recompute_over(self, stages: int) -> tuple[Recompute, ...]:
        """For another number of stages: where each had its own word, the one that takes least memory is then for all, which grow."""
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
        chosen = [name for name in fields if name not in kept and getattr(self, name) != fields[name].default]
        if self.auto and chosen:
            raise ValueError(f"auto chooses {', '.join(chosen)} by itself; leave that out, or auto")
        return self

    @model_validator(mode="after")
    def _each_stage_has_its_own(self) -> Self:
        stages = max(1, len(self.replicas))
        if len(self.recompute) not in (1, stages):
            raise ValueError(f"recompute={list(self.recompute)} is for {len(self.recompute)} stages, replicas={list(self.replicas)} for "
                             f"{stages}; give one word for all stages, or one for each")
        return self

    @property
    def cuts_the_model(self) -> bool:
        """Whether no rank holds all of it."""
        return len(self.replicas) > 1 or self.shards > 1

    @model_validator(mode="after")
    def _schedules_need_stages(self) -> Self:
        fields = type(self).model_fields
        idle = [f"{name}={getattr(self, name)}" for name in BETWEEN_STAGES if getattr(self, name) != fields[name].default]
        if idle and len(self.replicas) <= 1 and not self.auto:
            raise ValueError(f"{' and '.join(idle)} only matter between stages, and replicas={list(self.replicas)} is one stage; "
                             "leave them out, or give replicas of several stages, e.g. [1, 1]")
        return self

    @model_validator(mode="after")
    def _chunks_are_interleaved(self) -> Self:
        if self.chunks_per_stage > 1 and self.schedule != "interleaved":
            raise ValueError(f"chunks_per_stage={self.chunks_per_stage} needs schedule interleaved, found {self.schedule}")
        return self
