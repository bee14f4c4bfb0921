"""From a config to what the planner needs: a model's profile and a cluster, measured in a short ring, or on paper.

    profile_rank     runs on every rank at once, as training does: so what ranks of one host take from each other is in the figures
    measured         what the ranks returned, as a ModelProfile and a Cluster
    on_paper         the same model on machines that are not there, from counted operations
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TypedDict

import psutil
import torch
from torch import Tensor

from sparkring.conf.schema import Config, OptimizerConfig
from sparkring.models.blocks import BlockList
from sparkring.models.build import Shapes, list_blocks
from sparkring.pipelines.data.manifest import Dataset, Manifest
from sparkring.pipelines.parallel.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.planner.cost_model import BlockProfile, Cluster, Line, Links, ModelProfile, SumCost
from sparkring.pipelines.parallel.planner.fit import Samples, fit_line, fit_sum
from sparkring.pipelines.parallel.planner.paper import Assumptions
from sparkring.pipelines.training.block_counts import BlockCount, count_blocks, precision, random_inputs
from sparkring.pipelines.training.block_times import BlockSeconds, time_blocks
from sparkring.pipelines.training.link_times import LinkSeconds, extra_sets, time_links
from sparkring.pipelines.training.tasks import loss_of, shapes_of

MICRO_BATCHES = 8
"""The smaller of the two profiled micro-batches is a rank's rows of a step cut into so many."""


class RankProfile(TypedDict):
    """What a rank measured; plain values."""

    blocks: list[BlockSeconds]
    links: list[LinkSeconds]
    hosts: list[int]
    """Host of each rank."""
    memory_bytes: float
    """Free on the host before anything was built, a rank's share of it."""
    process_bytes: float
    """That the process had then."""


def optimizer_copies(config: OptimizerConfig) -> float:
    """Bytes that an optimizer keeps for each byte of parameters."""
    if config.name == "sgd":
        return 1.0 if config.momentum else 0.0
    return 2.0


def profile_rows(config: Config) -> tuple[int, int]:
    """Rows of the two micro-batches that are measured."""
    most = max(2, config.train.batch_rows // config.train.num_ranks)
    return max(1, most // MICRO_BATCHES), most


def profile_rank(context: RankContext, document: Mapping[str, object], dataset_url: str, version: int) -> RankProfile:
    """Measure blocks and links on one rank; what the ring launcher starts.

    Args:
        context: This rank's place.
        document: The config.
        dataset_url: Whose rows' shapes are taken; no row is read.
        version: Of the dataset.
    """
    config = Config.model_validate(document)
    manifest = Dataset(dataset_url).manifest(version)
    free = psutil.virtual_memory().available / len(context.local_ranks)
    process = float(psutil.Process().memory_info().rss)
    blocks, shapes = described(config, manifest)
    torch.manual_seed(config.train.seed)
    device = torch.device("cpu")
    with Communicator(context, extra_sets=extra_sets(context), hops=True) as communicator:
        communicator.barrier("profile")
        seconds = time_blocks(blocks, lambda rows: random_inputs(config, shapes, rows, device), _loss(manifest, shapes),
                              row_counts=profile_rows(config), optimizer=config.train.optimizer, dtype=precision(config))
        links = time_links(communicator)
    return RankProfile(blocks=seconds, links=links, hosts=list(context.hosts), memory_bytes=free + process, process_bytes=process)


def described(config: Config, manifest: Manifest) -> tuple[BlockList, Shapes]:
    """The model's blocks, none of them built, and the shapes of its rows."""
    shapes = shapes_of(manifest.task, manifest.preprocessing)
    return list_blocks(config.model, shapes), shapes


def measured(config: Config, manifest: Manifest, ranks: Sequence[RankProfile]) -> tuple[ModelProfile, Cluster]:
    """What the planner takes, from what all ranks measured.

    Args:
        config: Of the run that is planned.
        manifest: Of its dataset version.
        ranks: By rank; seconds are medians over all of them, links are those of rank 0.
    """
    blocks, shapes = described(config, manifest)
    counts = count_blocks(blocks, config, shapes)
    profiles = tuple(_block(count, forward=_over_ranks([rank["blocks"][number]["forward"] for rank in ranks]),
                            backward=_over_ranks([rank["blocks"][number]["backward"] for rank in ranks]))
                     for number, count in enumerate(counts))
    updates = sum(statistics.median(second for rank in ranks for second in rank["blocks"][number]["update"])
                  for number in range(len(counts)))
    num_bytes = sum(count.parameter_bytes + sum(count.shared_bytes.values()) for count in counts)
    model = ModelProfile(blocks=profiles, optimizer_copies=optimizer_copies(config.train.optimizer), update_s=updates / max(1, num_bytes))
    first = ranks[0]
    return model, Cluster(
        links=_links(first["links"], bucket_bytes=config.train.bucket_mb * 1e6), ranks_per_host=first["hosts"].count(0),
        memory_bytes=min(rank["memory_bytes"] for rank in ranks),
        process_bytes=max(rank["process_bytes"] for rank in ranks) + config.train.memory_mb * 1e6)


def on_paper(config: Config, manifest: Manifest, assumed: Assumptions) -> ModelProfile:
    """The model as it would run on devices that are not there: passes from counted operations, the optimizer for nothing."""
    blocks, shapes = described(config, manifest)
    profiles = tuple(
        _block(count, forward=assumed.pass_line(count.forward_flops), backward=assumed.pass_line(count.forward_flops, backward=True))
        for count in count_blocks(blocks, config, shapes))
    return ModelProfile(blocks=profiles, optimizer_copies=optimizer_copies(config.train.optimizer))


def _block(count: BlockCount, *, forward: Line, backward: Line) -> BlockProfile:
    return BlockProfile(name=count.name, forward=forward, backward=backward, parameter_bytes=count.parameter_bytes,
                        shared_bytes=count.shared_bytes, activation_bytes=count.activation_bytes, border_bytes=count.border_bytes)


def _over_ranks(by_rank: Sequence[Sequence[tuple[int, Sequence[float]]]]) -> Line:
    """One line through what all ranks measured."""
    return fit_line({amount: [second for rank in by_rank for second in dict(rank)[amount]] for amount, _ in by_rank[0]})


def _links(found: Sequence[LinkSeconds], *, bucket_bytes: float) -> Links:
    """Lines of all that was measured."""
    sums: dict[str, dict[int, Samples]] = defaultdict(dict)
    hops: dict[str, dict[str, Line]] = defaultdict(dict)
    for one in found:
        samples = dict(one["seconds"])
        if one["kind"] == "sum":
            sums[one["where"]][one["group"]] = samples
        else:
            hops[one["where"]][one["kind"]] = fit_line(samples)
    local, between = (fit_sum(sums[where]) if sums[where] else SumCost() for where in ("local", "between"))
    return Links(sum_local=local, sum_between=between, bucket_bytes=bucket_bytes, hop_local=hops["local"], hop_between=hops["between"])


def _loss(manifest: Manifest, shapes: Shapes) -> Callable[[Tensor], Tensor]:
    """The loss of outputs against random answers, drawn once for each number of rows."""
    loss_sum = loss_of(manifest.task, manifest.preprocessing)

    @cache
    def answers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if manifest.task == "binary":
            return torch.randint(2, shape).to(dtype)
        if manifest.task == "multiclass":
            return torch.randint(shapes.num_outputs, shape[:1])
        return torch.randint(shapes.vocabulary, shape[:2])

    return lambda outputs: loss_sum(outputs, answers(tuple(outputs.shape), outputs.dtype)) / len(outputs)
