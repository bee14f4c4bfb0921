"""What a model and its ranks take, measured in a short ring on the ranks that are to train; plain values come back.

    profile_rank     runs on every rank at once, as training does: so what ranks of one host take from each other is in the figures

What the planner makes of it is in ``fit.py``.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypedDict

import psutil
import torch
from torch import Tensor

from sparkring.conf.schema import Config
from sparkring.models.blocks import BlockList
from sparkring.models.build import Shapes, list_blocks
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.job.tasks import LossSum, loss_of, shapes_of
from sparkring.pipelines.training.profiling.block_counts import precision, random_inputs
from sparkring.pipelines.training.profiling.block_times import BlockSeconds, Loss, TimedModel, time_blocks
from sparkring.pipelines.training.profiling.executor_times import time_end, time_executor
from sparkring.pipelines.training.profiling.link_times import LinkSeconds, extra_sets, time_links
from sparkring.pipelines.training.profiling.shard_times import shard_groups, time_shards
from sparkring.pipelines.training.strategies.shards import Shards

MICRO_BATCHES = 8
"""The smaller of the two profiled micro-batches is a rank's rows of a step cut into so many."""


class RankProfile(TypedDict):
    """What a rank measured; plain values."""

    blocks: list[BlockSeconds]
    shards: list[tuple[int, list[BlockSeconds]]]
    """The same as shards compute them, by their number."""
    links: list[LinkSeconds]
    executor: list[float]
    """Its own seconds beside a pass: F, B, I, W."""
    end_s: float
    """Seconds in which all ranks learn a step's loss."""
    hosts: list[int]
    """Host of each rank."""
    memory_bytes: float
    """Free on the host before anything was built, a rank's share of it."""
    process_bytes: float
    """That the process had then."""
    machine: str
    """What kind of host this is: a profile holds for hosts of the same kind."""


def profile_rows(config: Config) -> tuple[int, int]:
    """Rows of the two micro-batches that are measured."""
    most = max(2, config.train.step_rows // config.train.num_ranks)
    return max(1, most // MICRO_BATCHES), most


def profile_rank(context: RankContext, document: Mapping[str, object], dataset_url: str, version: int,
                 places: Sequence[tuple[str, int]] | None = None) -> RankProfile | None:
    """Measure blocks and links on one rank; what the ring launcher starts.

    Args:
        context: This rank's place.
        document: The config.
        dataset_url: Whose rows' shapes are taken; no row is read.
        version: Of the dataset.
        places: By rank, on what kind of host this was measured before, and the host's number.
    Returns:
        What was measured; None on all ranks where all of them are on such hosts again, and as many on each.
    """
    config = Config.model_validate(document)
    manifest = Dataset(dataset_url).manifest(version)
    free = psutil.virtual_memory().available / len(context.local_ranks)
    process = float(psutil.Process().memory_info().rss)
    blocks, shapes = blocks_and_shapes(config, manifest)
    torch.manual_seed(config.train.seed)
    device = torch.device("cpu")
    subject = TimedModel(blocks=blocks, inputs=lambda rows: random_inputs(config, shapes, rows, device), row_counts=profile_rows(config),
                      optimizer=config.train.optimizer, dtype=precision(config))
    against = _answers(manifest, shapes)
    with Communicator(context, extra_sets=[*extra_sets(context), *shard_groups(context, blocks)], hops=True) as communicator:
        as_before = places is not None and tuple(places[context.rank]) == (host_kind(), context.hosts[context.rank])
        if communicator.agree(mine=as_before, name="profile.places"):
            return None
        seconds = time_blocks(subject, against(loss_of(manifest.task, manifest.preprocessing)))
        shards = time_shards(communicator, subject, lambda reducer: against(Shards(reducer, (), manifest).loss_sum))
        executor = time_executor()
        links = time_links(communicator)
        end_s = time_end(communicator)
    return RankProfile(blocks=seconds, shards=shards, links=links, executor=list(executor), end_s=end_s, hosts=list(context.hosts),
                       memory_bytes=free + process, process_bytes=process, machine=host_kind())


def blocks_and_shapes(config: Config, manifest: Manifest) -> tuple[BlockList, Shapes]:
    """The model's blocks, none of them built, and the shapes of its rows."""
    shapes = shapes_of(manifest.task, manifest.preprocessing)
    return list_blocks(config.model, shapes), shapes


def structure_digest(blocks: BlockList) -> str:
    """A digest of what blocks are made of, none of it built: layers, sizes and names, though not what they compute with them."""
    digest = hashlib.blake2b(digest_size=16)
    with torch.device("meta"), torch.random.fork_rng(devices=()):
        for block in blocks:
            for name, factory in block.parts.items():
                part = factory()
                sizes = [(path, tuple(parameter.shape)) for path, parameter in part.named_parameters()]
                digest.update(f"{block.name} {block.reads} {block.writes} {name} {part!r} {sizes}\n".encode())
    return digest.hexdigest()


def host_kind() -> str:
    """The kind of this host: processor, cores that this process may use, memory."""
    memory_gb = round(psutil.virtual_memory().total / 2 ** 30)
    return f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {memory_gb} GiB, torch {torch.__version__}"


def _processor() -> str:
    """Its model; its architecture where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _answers(manifest: Manifest, shapes: Shapes) -> Callable[[LossSum], Loss]:
    """From a task's loss to the loss of outputs against random answers, which are drawn once for each number of rows."""
    @cache
    def answers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if manifest.task == "binary":
            return torch.randint(2, shape).to(dtype)
        if manifest.task == "multiclass":
            return torch.randint(shapes.num_outputs, shape[:1])
        return torch.randint(shapes.vocabulary, shape[:2])

    return lambda loss_sum: lambda outputs: loss_sum(outputs, answers(tuple(outputs.shape), outputs.dtype)) / len(outputs)
