"""The planner's inputs (ModelProfile and Cluster) from measurements of ranks, or from counted operations. Starts nothing.

    measured     lines through medians over all ranks
    on_paper     the same model on machines that are known by published figures alone
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from sparkring.conf.schema import Config, OptimizerConfig, TransportName
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.parallel.planner.cost_model import (
    BlockProfile,
    Cluster,
    Hop,
    Line,
    LinkCosts,
    ModelProfile,
    PassSeconds,
    SumCost,
)
from sparkring.pipelines.parallel.planner.fit import Samples, fit_line, fit_sum
from sparkring.pipelines.parallel.planner.paper import Assumptions
from sparkring.pipelines.parallel.tensor_parallel.sharding import AbsentShards, shard_blocks
from sparkring.pipelines.training.profiling.block_counts import META, BlockCount, count_blocks, precision, random_inputs
from sparkring.pipelines.training.profiling.block_times import BlockSeconds, ByRows
from sparkring.pipelines.training.profiling.link_times import LINK_SCOPES, LinkScope, LinkSeconds, fullest_host
from sparkring.pipelines.training.profiling.profile import RankProfile, blocks_and_shapes


def measured(config: Config, manifest: Manifest, ranks: Sequence[RankProfile]) -> tuple[ModelProfile, Cluster]:
    """The planner's inputs from the measurements of all ranks.

    Args:
        config: The config of the run to plan.
        manifest: The manifest of its dataset version.
        ranks: Measurements by rank. Seconds are medians over all ranks; links come from the ranks that measured them.
    """
    first = ranks[0]
    hosts = tuple(first["hosts"])
    local = fullest_host(hosts)
    links = [*(one for one in ranks[local[0]]["links"] if one["where"] == "local"),
             *(one for one in first["links"] if one["where"] == "between")]
    model = ModelProfile(
        blocks=blocks_of(_counted(config, manifest), [rank["blocks"] for rank in ranks]),
        optimizer_copies=optimizer_copies(config.train.optimizer), executor=executor_of([rank["executor"] for rank in ranks]),
        step_s=statistics.median(rank["end_s"] for rank in ranks),
        shards={count: blocks_of(_counted(config, manifest, shards=count), [dict(rank["shards"])[count] for rank in ranks])
                for count, _ in first["shards"]})
    return model, Cluster(
        links=links_of(links, bucket_bytes=config.train.bucket_mb * 1e6), ranks_per_host=len(local), placed=hosts,
        memory_bytes=min(rank["memory_bytes"] for rank in ranks),
        process_bytes=max(rank["process_bytes"] for rank in ranks) + (config.train.memory_mb * 1e6 if first["device"] == "cpu" else 0.0))


def on_paper(config: Config, manifest: Manifest, assumed: Assumptions) -> ModelProfile:
    """The model on assumed devices: seconds of passes from counted operations, all else free."""
    blocks = [_block(count, forward=assumed.pass_line(count.forward_flops),
                     backward=assumed.pass_line(count.forward_flops, backward=True)) for count in _counted(config, manifest)]
    return ModelProfile(blocks=tuple(blocks), optimizer_copies=optimizer_copies(config.train.optimizer))


def optimizer_copies(config: OptimizerConfig) -> float:
    """Bytes that an optimizer keeps per byte of parameters."""
    momentum = 1.0 if config.momentum else 0.0
    return {"sgd": momentum, "lars": 1.0, "adagrad": 1.0, "rmsprop": 1.0 + momentum, "adam": 2.0, "adamw": 2.0}[config.name]


def blocks_of(counts: Sequence[BlockCount], ranks: Sequence[Sequence[BlockSeconds]]) -> tuple[BlockProfile, ...]:
    """Each block's bytes, and lines through the seconds that all ranks measured."""
    def line(passes: Sequence[ByRows]) -> Line:
        return fit_line({rows: [second for rank in passes for second in dict(rank)[rows]] for rows, _ in passes[0]})

    blocks = []
    for count, of_ranks in zip(counts, zip(*ranks, strict=True), strict=True):
        halves = line([seconds["input"] for seconds in of_ranks]), line([seconds["weight"] for seconds in of_ranks])
        blocks.append(_block(count, forward=line([seconds["forward"] for seconds in of_ranks]),
                             backward=line([seconds["backward"] for seconds in of_ranks]), halves=halves,
                             update_s=statistics.median(second for seconds in of_ranks for second in seconds["update"])))
    return tuple(blocks)


def executor_of(ranks: Sequence[Sequence[float]]) -> PassSeconds:
    """Medians over the ranks of the executor's seconds, for the four kinds of passes."""
    return PassSeconds(*(statistics.median(seconds) for seconds in zip(*ranks, strict=True)))


def links_of(found: Sequence[LinkSeconds], *, bucket_bytes: float) -> LinkCosts:
    """Lines through the measured sums and hops."""
    sums: dict[LinkScope, dict[int, Samples]] = defaultdict(dict)
    hops: dict[LinkScope, dict[TransportName, dict[str, Line]]] = defaultdict(lambda: defaultdict(dict))
    for one in found:
        samples = dict(one["seconds"])
        if one["kind"] == "sum":
            sums[one["where"]][one["group"]] = samples
        else:
            hops[one["where"]][one["kind"]][one["part"]] = fit_line(samples)
    local, between = (fit_sum(sums[where]) if sums[where] else SumCost() for where in LINK_SCOPES)
    hop_local, hop_between = ({kind: Hop(**lines) for kind, lines in hops[where].items()} for where in LINK_SCOPES)
    return LinkCosts(sum_local=local, sum_between=between, bucket_bytes=bucket_bytes, hop_local=hop_local, hop_between=hop_between)


def _counted(config: Config, manifest: Manifest, *, shards: int = 1) -> list[BlockCount]:
    """Bytes and operations of each block or, with several shards, of the first shard's part of it."""
    blocks, shapes = blocks_and_shapes(config, manifest)
    return count_blocks(shard_blocks(blocks, AbsentShards(shards)), lambda rows: random_inputs(config, shapes, rows, META),
                        dtype=precision(config))


def _block(count: BlockCount, *, forward: Line, backward: Line, halves: tuple[Line, Line] | None = None, update_s: float = 0.0,
           ) -> BlockProfile:
    return BlockProfile(name=count.name, forward=forward, backward=backward, halves=halves, update_s=update_s,
                        parameter_bytes=count.parameter_bytes, shared_bytes=count.shared_bytes, activation_bytes=count.activation_bytes,
                        border_bytes=count.border_bytes)
