"""From a config to a layout: the mesh, the schedule, where the blocks are cut, and which stages share parts.

Computed before a ring starts, so that an impossible layout is refused at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from sparkring.conf.schema import TrainConfig, TransportName
from sparkring.errors import ConfigError, LayoutRefused
from sparkring.models.batch_norm import normalises_rows
from sparkring.models.blocks import BlockList
from sparkring.pipelines.parallel.mesh import Mesh, Ranks, host_leaders, messages_by_horovod
from sparkring.pipelines.parallel.schedules.generators.catalogue import build_schedule
from sparkring.pipelines.parallel.schedules.schedule import Schedule, Worker
from sparkring.pipelines.parallel.stages.edges import edges_of
from sparkring.pipelines.parallel.stages.partition import Bounds, cut_by_count, cut_by_hand
from sparkring.pipelines.parallel.tensor_parallel.sharding import AbsentShards, shard_blocks
from sparkring.pipelines.parallel.transports.base import Edge


@dataclass(frozen=True)
class Layout:
    """Which rank does what."""

    mesh: Mesh
    schedule: Schedule
    bounds: Bounds
    """First block of each chunk and, last, the number of blocks."""
    tied: dict[str, tuple[int, ...]]
    """The parts that several chunks hold, with those chunks."""
    transport: TransportName

    @classmethod
    def of(cls, train: TrainConfig, blocks: BlockList) -> Layout:
        """Lay the blocks over the ranks.

        Raises:
            LayoutRefused: the model has too few blocks, or the cut does not fit it.
            ConfigError: the schedule does not allow this shape.
        """
        shard_blocks(blocks, AbsentShards(train.parallel.shards))
        parallel, mesh = train.parallel, Mesh(train.replicas, train.parallel.shards)
        schedule = build_schedule(parallel.schedule, mesh.replicas, train.num_micro_batches, chunks_per_stage=parallel.chunks_per_stage)
        if blocks.uncut and schedule.num_chunks > 1:
            raise LayoutRefused(f"the network cannot be cut into {schedule.num_chunks} runs of blocks: {blocks.uncut}; train it by data "
                                "parallelism, or list its blocks yourself (docs/how-to/networks.md).")
        if parallel.cut:
            bounds = cut_by_hand([block.name for block in blocks], parallel.cut)
        else:
            bounds = cut_by_count(len(blocks), schedule.num_chunks)
        if len(bounds) - 1 != schedule.num_chunks:
            raise LayoutRefused(f"train.parallel.cut={list(parallel.cut)} makes {len(bounds) - 1} runs of blocks, {mesh} with "
                                f"{parallel.chunks_per_stage} chunks each need {schedule.num_chunks}; change one of them.")
        return cls(mesh, schedule, bounds, blocks.shared_parts(bounds), parallel.transport)

    @property
    def messages_by_horovod(self) -> bool:
        """Whether messages between stages pass through Horovod."""
        return messages_by_horovod(self.transport)

    def tied_sets(self, shard: int) -> dict[str, Ranks]:
        """The ranks that hold a shard of each shared part, and sum its gradients."""
        return {part: self.mesh.tied_set([chunk % self.mesh.num_stages for chunk in chunks], shard) for part, chunks in self.tied.items()}

    def edges(self) -> list[Edge]:
        """All edges on which ranks exchange messages, shard to same shard."""
        return [edge for shard in range(self.mesh.shards) for edge in edges_of(self.schedule, partial(self.rank_of, shard=shard))]

    def rank_of(self, worker: Worker, *, shard: int) -> int:
        """The rank of one shard of a worker."""
        return self.mesh.rank(worker.stage, worker.replica, shard)

    def alike(self) -> list[Ranks]:
        """The ranks of each stage; ranks of one stage do the same work."""
        return [tuple(rank for shard in range(self.mesh.shards) for rank in self.mesh.replica_set(stage, shard))
                for stage in range(self.mesh.num_stages)]

    def process_sets(self, hosts: Sequence[int], *, wraps: bool = False) -> list[Ranks]:
        """The process sets that the ring needs on these hosts.

        Args:
            hosts: Host number of each rank.
            wraps: Whether the last stage sends to the first one even if the schedule does not.
        Raises:
            LayoutRefused: the layout has another number of ranks.
        """
        tied = [[chunk % self.mesh.num_stages for chunk in chunks] for chunks in self.tied.values()]
        needed = self.mesh.process_sets(hosts, transport=self.transport,
                                        wraps=wraps or self.schedule.num_chunks > self.mesh.num_stages, tied=tied)
        rings = (host_leaders(self.mesh.replica_set(stage, shard), hosts)
                 for stage in range(self.mesh.num_stages) for shard in range(self.mesh.shards))
        return [*needed, *(ring for ring in rings if len(ring) > 1)]


def require_micro_batches(train: TrainConfig, blocks: BlockList) -> None:
    """See that the rows over which a network of the user's, or of the catalogue, normalises do not depend on the number of ranks.

    Raises:
        ConfigError: it has batch normalisation, and ``train.parallel.micro_batches`` is not set, or cannot be.
    """
    if train.parallel.micro_batches is None and normalises_rows(blocks):
        train.require_rows_together("the network")
        raise ConfigError("the network's batch normalisation is over the rows of a micro-batch; set train.parallel.micro_batches, so that "
                          f"the result does not depend on the number of ranks, e.g. to {train.num_micro_batches}.")
