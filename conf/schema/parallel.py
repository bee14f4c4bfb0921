"""How a model is laid over the ranks: ``train.parallel``. One stage is plain data parallelism."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from sparkring.conf.schema.section import Positive, Section


class ParallelConfig(Section):
    """Stages, their replicas, and the schedule by which micro-batches pass through them."""

    replicas: tuple[Positive, ...] = ()
    """Copies of each stage, e.g. ``[2, 1]``: two stages, the first one twice. They add up to num_ranks. Empty: one stage on all ranks."""
    micro_batches: Positive = 1
    """Parts that a step's rows are cut into, over all replicas: a multiple of each stage's replicas. Several stages want at least
    four times as many as there are stages."""
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero_bubble"] = "1f1b"
    chunks_per_stage: Positive = 1
    """Runs of blocks a stage; more than one only with ``interleaved``."""
    cut: tuple[Positive, ...] | tuple[str, ...] = ()
    """Blocks of each stage (or chunk), e.g. ``[3, 2]``, or the first block of each but the first by name. Empty: as many each."""
    transport: Literal["sidecar", "horovod"] = "sidecar"
    """What carries activations: shared memory and Gloo sockets beside Horovod, or Horovod's own process sets."""
    recompute: Literal["never", "always", "except_last"] = "never"
    """Activation checkpointing: the micro-batches whose forward pass is done again instead of kept."""

    @property
    def staged(self) -> bool:
        """Whether this is more than plain data parallelism."""
        return len(self.replicas) > 1 or self.micro_batches > 1

    @model_validator(mode="after")
    def _micro_batches_come_out_even(self) -> Self:
        uneven = [count for count in self.replicas if self.micro_batches % count]
        if uneven and self.staged:
            raise ValueError(f"micro_batches={self.micro_batches} is no multiple of a stage's {uneven[0]} replicas: some would idle; "
                             f"give a multiple of each of {list(self.replicas)}")
        if self.chunks_per_stage > 1 and self.schedule != "interleaved":
            raise ValueError(f"chunks_per_stage={self.chunks_per_stage} needs schedule interleaved, found {self.schedule}")
        return self
