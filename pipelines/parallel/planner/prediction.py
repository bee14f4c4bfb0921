"""What one layout would take: its cut, the bytes of each stage, and the seconds of a step, by playing its real schedule. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise

from sparkring.errors import LayoutRefused
from sparkring.pipelines.parallel.mesh import Mesh, TransportKind
from sparkring.pipelines.parallel.planner.cost_model import NO_SECONDS, BlockProfile, Cluster, ModelProfile, PassSeconds, chunk_blocks
from sparkring.pipelines.parallel.planner.enumerate import Candidate
from sparkring.pipelines.parallel.planner.gradient_sum import waiting_s
from sparkring.pipelines.parallel.planner.memory import MicroBatchRows, StageMemory, stage_memories
from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.generators.catalogue import build_schedule
from sparkring.pipelines.parallel.schedules.memory import peak_activations
from sparkring.pipelines.parallel.schedules.schedule import Schedule, Worker
from sparkring.pipelines.parallel.schedules.simulator import simulate
from sparkring.pipelines.parallel.stages.partition import BlockCost, Bounds, MemoryModel, cut_by_time

TRANSPORTS: Mapping[str, TransportKind] = {"sidecar": "sidecar", "horovod": "horovod"}


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A layout with all that was predicted of it."""

    candidate: Candidate
    bounds: Bounds
    """First block of each chunk and, last, the number of blocks."""
    transport: str
    memory: tuple[StageMemory, ...]
    """Of a rank of each stage."""
    seconds: float
    """Of a step; infinite where it does not fit."""
    idle: float = 0.0
    """Share of the passes' time in which a rank computes nothing."""
    sum_s: float = 0.0
    """Of the step: waiting for gradients, of the stage that waits longest."""
    refused: str = ""
    """Why it cannot be used; empty where it can."""

    @property
    def cut(self) -> tuple[int, ...]:
        """Blocks of each chunk, as the config takes them."""
        return tuple(last - first for first, last in pairwise(self.bounds))


def predict(model: ModelProfile, cluster: Cluster, candidate: Candidate, *, batch_rows: int) -> Prediction:
    """Predict one layout.

    Args:
        model: Profiled, or known on paper.
        cluster: Machines and links.
        candidate: The layout.
        batch_rows: Of a step over all ranks.
    Returns:
        Its prediction; ``refused`` says why it cannot be used.
    Raises:
        ConfigError: the schedule does not allow this shape.
    """
    pipeline = _Pipeline(model, cluster, candidate, batch_rows=batch_rows)
    bounds = _even_cut(tuple(block.seconds for block in pipeline.block_costs()), pipeline.copies)
    memory = pipeline.memory(bounds)
    refused = _too_large(memory, cluster.memory_bytes)
    if refused and sum(each.total for each in memory) <= len(memory) * cluster.memory_bytes:  # else no other cut fits either
        try:
            bounds = cut_by_time(pipeline.block_costs(), candidate.num_chunks, replicas=pipeline.copies, memory=pipeline.memory_model())
            memory = pipeline.memory(bounds)
            refused = _too_large(memory, cluster.memory_bytes)
        except LayoutRefused:
            pass  # the cut by time alone has said already which stage is too large
    transport = pipeline.transport(bounds)
    refused = refused or _not_started(Mesh(candidate.replicas, candidate.shards), cluster.hosts(candidate.num_ranks), transport,
                                      candidate.chunks_per_stage > 1, tuple(sorted(set(pipeline.tied(bounds).values()))))
    if refused:
        return Prediction(candidate=candidate, bounds=bounds, transport=transport, memory=memory, seconds=math.inf, refused=refused)
    costs = pipeline.costs(bounds, transport)
    timeline = simulate(pipeline.schedule, costs)
    return Prediction(candidate=candidate, bounds=bounds, transport=transport, memory=memory, seconds=timeline.makespan_s,
                  idle=timeline.bubble, sum_s=max(costs.reduce_s))


class _Pipeline:
    """A candidate at one size of micro-batch: passes are those of the mean number of rows, memory that of the largest."""

    def __init__(self, model: ModelProfile, cluster: Cluster, candidate: Candidate, *, batch_rows: int) -> None:
        self._model, self._cluster, self._candidate = model.of_shards(candidate.shards), cluster, candidate
        self._rows = MicroBatchRows.of(batch_rows, candidate.micro_batches)
        self._slowdown = cluster.slowdown(candidate.num_ranks)
        self._hosts, self._mesh = cluster.hosts(candidate.num_ranks), Mesh(candidate.replicas, candidate.shards)
        self.copies = candidate.replicas * candidate.chunks_per_stage
        self.schedule = self._played_schedule()

    def _played_schedule(self) -> Schedule:
        """Where all stages have as many replicas, one pipeline is like the next: one of them is played."""
        candidate = self._candidate
        replicas, micro_batches = candidate.replicas, candidate.micro_batches
        if len(set(replicas)) == 1:
            replicas, micro_batches = (1,) * len(replicas), micro_batches // replicas[0]
        return _schedule(candidate.schedule, replicas, micro_batches, candidate.chunks_per_stage)

    def block_costs(self) -> list[BlockCost]:
        """For the cut."""
        mean = self._rows.mean
        return [BlockCost(name=block.name, seconds=self._slowdown * (block.forward.at(mean) + block.backward.at(mean)),
                          parameter_bytes=round(block.parameter_bytes),
                          shared_bytes={part: round(size) for part, size in block.shared_bytes.items()},
                          activation_bytes=round(self._rows.most * (block.border_bytes if self._recomputes else block.activation_bytes)))
                for block in self._model.blocks]

    def memory_model(self) -> MemoryModel:
        """For a cut that has to fit."""
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

    def transport(self, bounds: Bounds) -> str:
        """The faster one for the largest message; between hosts wherever some message goes there."""
        sizes = [self._rows.mean * self._model.blocks[bound - 1].border_bytes for bound in bounds[1:-1]]
        between = max((self._at_once(chunk) for chunk in range(len(bounds) - 2)), default=0)
        return self._cluster.links.fastest(max(sizes), between=between) if sizes else "sidecar"

    def costs(self, bounds: Bounds, transport: str = "sidecar") -> Costs:
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
        """Of a chunk for one micro-batch: its blocks, and the executor once."""
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
        """Waiting for this stage's gradients after its last backward pass, and for those of parts that other stages hold too."""
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
        """The optimizer and the end of the step; with its state shared out, each replica does its part and passes the values on."""
        own = [(bounds[chunk], bounds[chunk + 1]) for chunk in range(stage, len(bounds) - 1, self._candidate.num_stages)]
        seconds = self._slowdown * sum(block.update_s for first, last in own for block in self._model.blocks[first:last])
        if self._candidate.shard_optimizer:
            hosts = [self._hosts[rank] for rank in self._mesh.replica_set(stage, 0)]
            size = sum(self._model.bytes_of(first, last) for first, last in own)
            seconds = seconds / len(hosts) + self._cluster.links.sum_s(hosts, size, at_once=self._candidate.shards)
        return seconds + self._model.step_s

    def tied(self, bounds: Bounds) -> dict[str, tuple[int, ...]]:
        """Parts that several stages hold, and which."""
        holders: dict[str, set[int]] = {}
        for chunk, blocks in enumerate(chunk_blocks(self._model, bounds)):
            for part in (part for block in blocks for part in block.shared_bytes):
                holders.setdefault(part, set()).add(chunk % self._candidate.num_stages)
        return {part: tuple(sorted(stages)) for part, stages in holders.items() if len(stages) > 1}

    def _at_once(self, chunk: int) -> int:
        """Messages to another host that share a host's link, of replicas and shards of a chunk's stage that hand on together; 0: none."""
        one, other = (each % self._candidate.num_stages for each in (chunk, chunk + 1))
        mesh, hosts = self._mesh, self._hosts
        steps = {(mesh.rank(one, mesh.worker(one, number)), mesh.rank(other, mesh.worker(other, number)))
                 for number in range(math.lcm(mesh.replicas[one], mesh.replicas[other]))}
        leaving = [(hosts[source], hosts[target]) for source, target in steps if hosts[source] != hosts[target]]
        busiest = max((count for side in zip(*leaving, strict=True) for count in Counter(side).values()), default=0)
        # Of unequal replicas the many hand to the few in turn: no more messages are on their way than the fewer have ranks.
        return min(busiest, mesh.replicas[one], mesh.replicas[other]) * mesh.shards


def _too_large(memory: Sequence[StageMemory], limit: float) -> str:
    """Which stage does not fit, and what takes most there."""
    worst = max(range(len(memory)), key=lambda stage: memory[stage].total)
    if memory[worst].total <= limit:
        return ""
    what, size = memory[worst].largest
    where = f"stage {worst}" if len(memory) > 1 else "a rank"
    return f"does not fit, because {where} takes {_size(memory[worst].total)} ({what} {_size(size)}) of {_size(limit)}"


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.3g} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.3g} MB"


@lru_cache(maxsize=128)
def _schedule(name: str, replicas: tuple[int, ...], micro_batches: int, chunks_per_stage: int) -> Schedule:
    """The same lists are played at many sizes of micro-batch, and for many numbers of equal replicas."""
    return build_schedule(name, replicas, micro_batches, chunks_per_stage=chunks_per_stage)


@lru_cache(maxsize=1024)
def _even_cut(seconds: tuple[float, ...], copies: tuple[int, ...]) -> Bounds:
    """The cut by time alone, of blocks that take so long; it is the same for all schedules."""
    return cut_by_time([BlockCost(name="", seconds=each) for each in seconds], len(copies), replicas=copies)


@lru_cache(maxsize=1024)
def _not_started(mesh: Mesh, hosts: tuple[int, ...], transport: str, wraps: bool,  # noqa: FBT001 - keys of a cache
                 tied: tuple[tuple[int, ...], ...]) -> str:
    """Why Horovod cannot start such process sets on these hosts; empty where it can."""
    try:
        mesh.process_sets(hosts, transport=TRANSPORTS[transport], wraps=wraps, tied=tied)
    except LayoutRefused as refused:
        return str(refused)
    return ""
