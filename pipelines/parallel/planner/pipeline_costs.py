"""Seconds and bytes of one layout's pipeline, from the profiles of blocks and links; the simulator plays them. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache, partial

from sparkring.conf.schema import TransportName
from sparkring.pipelines.parallel.mesh import Mesh
from sparkring.pipelines.parallel.planner.cost_model import NO_SECONDS, BlockProfile, Cluster, ModelProfile, PassSeconds, chunk_blocks
from sparkring.pipelines.parallel.planner.enumerate import Candidate
from sparkring.pipelines.parallel.planner.gradient_sum import waiting_s
from sparkring.pipelines.parallel.planner.memory import MicroBatchRows, StageMemory, stage_memories
from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.generators.catalogue import build_schedule
from sparkring.pipelines.parallel.schedules.memory import peak_activations
from sparkring.pipelines.parallel.schedules.schedule import Schedule, Worker
from sparkring.pipelines.parallel.stages.partition import BlockCost, Bounds, MemoryModel


class PipelineCosts:
    """A layout at one size of micro-batch. Seconds are those of the mean number of rows, bytes those of the largest."""

    def __init__(self, model: ModelProfile, cluster: Cluster, candidate: Candidate, *, batch_rows: int) -> None:
        """Take the arguments of ``predict``."""
        self._model, self._cluster, self._candidate = model.of_shards(candidate.shards), cluster, candidate
        self._rows = MicroBatchRows.of(batch_rows, candidate.micro_batches)
        self._slowdown = cluster.slowdown(candidate.num_ranks)
        self._hosts, self._mesh = cluster.hosts(candidate.num_ranks), Mesh(candidate.replicas, candidate.shards)
        self.copies = candidate.replicas * candidate.chunks_per_stage
        self.schedule = self._played_schedule()

    def _played_schedule(self) -> Schedule:
        """The schedule to play: with equally many replicas of all stages, all pipelines are alike, and one is enough."""
        candidate = self._candidate
        replicas, micro_batches = candidate.replicas, candidate.micro_batches
        if len(set(replicas)) == 1:
            replicas, micro_batches = (1,) * len(replicas), micro_batches // replicas[0]
        return _schedule(candidate.schedule, replicas, micro_batches, candidate.chunks_per_stage)

    def block_costs(self) -> list[BlockCost]:
        """Costs of the blocks, for the cut."""
        mean = self._rows.mean
        return [BlockCost(name=block.name, seconds=self._slowdown * (block.forward.at(mean) + block.backward.at(mean)),
                          parameter_bytes=round(block.parameter_bytes),
                          shared_bytes={part: round(size) for part, size in block.shared_bytes.items()},
                          activation_bytes=round(self._rows.most * (block.border_bytes if self._recomputes else block.activation_bytes)))
                for block in self._model.blocks]

    def memory_model(self) -> MemoryModel:
        """Memory of a rank, for a cut that must fit."""
        model, stages, costs = self._model, self._candidate.num_stages, self.costs(self._even_bounds())
        optimizer = model.optimizer_copies / (min(self._candidate.replicas) if self._candidate.shard_optimizer else 1)
        held = [peak_activations(self.schedule, costs, Worker(stage, 0)).micro_batches for stage in range(stages)]
        return MemoryModel(copies=2 + optimizer, in_flight=tuple(held * self._candidate.chunks_per_stage),
                           border_bytes=tuple(round(self._rows.most * block.border_bytes) for block in model.blocks[:-1]),
                           limit_bytes=(self._cluster.memory_bytes - self._cluster.process_bytes) / self._candidate.chunks_per_stage)

    def memory(self, bounds: Bounds) -> tuple[StageMemory, ...]:
        """Bytes of a rank of each stage."""
        replicas = self._candidate.replicas
        return stage_memories(self._model, self._cluster, self.schedule, bounds=bounds, costs=self.costs(bounds), rows=self._rows,
                              owners=replicas if self._candidate.shard_optimizer else (1,) * len(replicas))

    def transport(self, bounds: Bounds) -> TransportName:
        """The faster transport for the largest message; between hosts if any message crosses them."""
        sizes = [self._rows.mean * self._model.blocks[bound - 1].border_bytes for bound in bounds[1:-1]]
        between = max((self._at_once(chunk) for chunk in range(len(bounds) - 2)), default=0)
        return self._cluster.links.fastest(max(sizes), between=between) if sizes else "sidecar"

    def costs(self, bounds: Bounds, transport: TransportName = "sidecar") -> Costs:
        """Seconds and bytes of one micro-batch, by chunk."""
        chunks, most = chunk_blocks(self._model, bounds), self._rows.most
        passes = [self._passes(chunk) for chunk in chunks]
        hops = [self._cluster.links.handover(transport, self._rows.mean * blocks[-1].border_bytes, between=self._at_once(chunk))
                for chunk, blocks in enumerate(chunks[:-1])]
        flights = [hop.flight_s for hop in hops]
        inputs = [most * self._model.blocks[bound - 1].border_bytes if bound else 0.0 for bound in bounds[:-1]]
        kept = [most * sum(block.activation_bytes for block in chunk) for chunk in chunks]
        stages = range(self._candidate.num_stages)
        return Costs(forward_s=[each.forward_s for each in passes], backward_s=[each.backward_s for each in passes],
                     input_s=[each.input_s for each in passes], weight_s=[each.weight_s for each in passes],
                     hop_forward_s=flights, hop_backward_s=flights,
                     send_s=[hop.send_s for hop in hops], receive_s=[hop.receive_s for hop in hops],
                     reduce_s=[self._reduce_s(stage, bounds) for stage in stages],
                     step_s=[self._update_s(stage, bounds) for stage in stages],
                     activation_bytes=kept, stash_bytes=inputs, weight_bytes=kept,
                     checkpoint=[self._candidate.recompute] * len(chunks) if self._recomputes else ())

    def _passes(self, chunk: Sequence[BlockProfile]) -> PassSeconds:
        """Seconds of a chunk's passes for one micro-batch: those of its blocks, and the executor's own."""
        lines = [(block.forward, block.backward, *(block.halves or (block.backward.half(), block.backward.half()))) for block in chunk]
        beside = NO_SECONDS if self._candidate.is_plain else self._model.executor
        return PassSeconds(*(self._slowdown * (extra + sum(line.at(self._rows.mean) for line in of_blocks))
                             for extra, of_blocks in zip(beside, zip(*lines, strict=True), strict=True)))

    @property
    def _recomputes(self) -> bool:
        return self._candidate.recompute != "never"

    def _even_bounds(self) -> Bounds:
        runs, blocks = self._candidate.num_chunks, len(self._model.blocks)
        return tuple(blocks * run // runs for run in range(runs + 1))

    def _reduce_s(self, stage: int, bounds: Bounds) -> float:
        """Seconds from this stage's last backward pass until its gradients are summed, those of tied parts included."""
        own = [block for chunk in chunk_blocks(self._model, bounds)[stage::self._candidate.num_stages] for block in chunk]
        tied = self.tied(bounds)
        links, shards = self._cluster.links, self._candidate.shards
        sum_s = partial(links.sum_s, [self._hosts[rank] for rank in self._mesh.replica_set(stage, 0)], at_once=shards)
        sizes = [block.parameter_bytes + sum(size for part, size in block.shared_bytes.items() if part not in tied) for block in own]
        waited = waiting_s(sizes, [self._slowdown * block.backward.at(self._rows.mean) for block in own], bucket_bytes=links.bucket_bytes,
                           sum_s=sum_s, overlaps=links.overlaps)
        for part, stages in tied.items():
            if stage in stages:
                size = next(block.shared_bytes[part] for block in own if part in block.shared_bytes)
                waited += links.sum_s([self._hosts[rank] for rank in self._mesh.tied_set(stages, 0)], size, at_once=shards)
        return waited

    def _update_s(self, stage: int, bounds: Bounds) -> float:
        """Seconds of the optimizer and the end of the step. A sharded optimizer updates a part on each replica and exchanges the values."""
        own = [(bounds[chunk], bounds[chunk + 1]) for chunk in range(stage, len(bounds) - 1, self._candidate.num_stages)]
        seconds = self._slowdown * sum(block.update_s for first, last in own for block in self._model.blocks[first:last])
        if self._candidate.shard_optimizer:
            hosts = [self._hosts[rank] for rank in self._mesh.replica_set(stage, 0)]
            size = sum(self._model.bytes_of(first, last) for first, last in own)
            seconds = seconds / len(hosts) + self._cluster.links.sum_s(hosts, size, at_once=self._candidate.shards)
        return seconds + self._model.step_s

    def tied(self, bounds: Bounds) -> dict[str, tuple[int, ...]]:
        """Parts that several stages hold, with those stages."""
        holders: dict[str, set[int]] = {}
        for chunk, blocks in enumerate(chunk_blocks(self._model, bounds)):
            for part in (part for block in blocks for part in block.shared_bytes):
                holders.setdefault(part, set()).add(chunk % self._candidate.num_stages)
        return {part: tuple(sorted(stages)) for part, stages in holders.items() if len(stages) > 1}

    def _at_once(self, chunk: int) -> int:
        """Messages of a chunk that leave the same host at the same time and so share its link; 0: none leave."""
        one, other = (each % self._candidate.num_stages for each in (chunk, chunk + 1))
        mesh, hosts = self._mesh, self._hosts
        steps = {(mesh.rank(one, mesh.worker(one, number)), mesh.rank(other, mesh.worker(other, number)))
                 for number in range(math.lcm(mesh.replicas[one], mesh.replicas[other]))}
        leaving = [(hosts[source], hosts[target]) for source, target in steps if hosts[source] != hosts[target]]
        busiest = max((count for side in zip(*leaving, strict=True) for count in Counter(side).values()), default=0)
        # With unequal replicas, the many take turns to send to the few: only as many messages travel as the fewer have ranks.
        return min(busiest, mesh.replicas[one], mesh.replicas[other]) * mesh.shards


@lru_cache(maxsize=128)
def _schedule(name: str, replicas: tuple[int, ...], micro_batches: int, chunks_per_stage: int) -> Schedule:
    """Schedules are cached: the same lists are played for many sizes of micro-batch and numbers of equal replicas."""
    return build_schedule(name, replicas, micro_batches, chunks_per_stage=chunks_per_stage)
