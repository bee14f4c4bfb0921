"""Measuring a model and its ranks in a short ring on the ranks that will train; the results are plain values.

    profile_rank     runs on every rank at once, as training does, so the figures include the competition of a host's ranks

``fit.py`` turns the results into the planner's inputs.
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
from sparkring.pipelines.training.profiling.link_times import LinkSeconds, backends_of, extra_sets, time_links
from sparkring.pipelines.training.profiling.shard_times import shard_groups, time_shards
from sparkring.pipelines.training.strategies.shards import Shards

MICRO_BATCHES = 8
"""The smaller measured micro-batch is a rank's rows of a step divided by this."""


class RankProfile(TypedDict):
    """The measurements of one rank, as plain values."""

    blocks: list[BlockSeconds]
    shards: list[tuple[int, list[BlockSeconds]]]
    """By number of shards, the blocks as one shard computes them."""
    links: list[LinkSeconds]
    executor: list[float]
    """The executor's own seconds per pass: F, B, I, W."""
    end_s: float
    """Seconds until all ranks have a step's loss."""
    hosts: list[int]
    """Host of each rank."""
    memory_bytes: float
    """The rank's share of the host's memory that was free before anything was built, and what the process had; or its GPU's memory."""
    process_bytes: float
    """Memory of the process at that time; on a GPU all that was in use there."""
    device: str
    """Whose memory that is."""
    machine: str
    """The kind of host: a profile holds for hosts of the same kind."""


def profile_rows(config: Config) -> tuple[int, int]:
    """Rows of the two micro-batches that are measured."""
    most = max(2, config.train.step_rows // config.train.num_ranks)
    return max(1, most // MICRO_BATCHES), most


def profile_rank(context: RankContext, document: Mapping[str, object], dataset_url: str, version: int,
                 places: Sequence[tuple[str, int]] | None = None) -> RankProfile | None:
    """Measure blocks and links on one rank; the ring launcher starts this.

    Args:
        context: This rank's identity.
        document: The config.
        dataset_url: The dataset whose rows' shapes are used; no row is read.
        version: The dataset version.
        places: By rank, the kind and the number of its host in an earlier measurement.
    Returns:
        The measurements; None on all ranks if every rank is on a host as in the earlier measurement.
    """
    config = Config.model_validate(document)
    manifest = Dataset(dataset_url).manifest(version, fold=config.fold)
    device = torch.device(context.device)
    memory, process = _memory(context)
    blocks, shapes = blocks_and_shapes(config, manifest)
    torch.manual_seed(config.train.seed)
    subject = TimedModel(blocks=blocks, inputs=lambda rows: random_inputs(config, shapes, rows, device), row_counts=profile_rows(config),
                      optimizer=config.train.optimizer, dtype=precision(config))
    against = _answers(manifest, shapes, device)
    sets = [*extra_sets(context), *shard_groups(context, blocks, config.train.optimizer)]
    with Communicator(context, extra_sets=sets, messages_by_horovod=True) as communicator:
        as_before = places is not None and tuple(places[context.rank]) == (host_kind(device), context.hosts[context.rank])
        if communicator.agree(mine=as_before, name="profile.places"):
            return None
        seconds = time_blocks(subject, against(loss_of(manifest.task, manifest.preprocessing, config.train)))
        shards = time_shards(communicator, subject, lambda reducer: against(Shards(reducer, (), manifest, config.train).loss_sum))
        executor = time_executor(device)
        links = time_links(communicator, backends_of(config.train.ring))
        end_s = time_end(communicator)
    return RankProfile(blocks=seconds, shards=shards, links=links, executor=list(executor), end_s=end_s, hosts=list(context.hosts),
                       memory_bytes=memory, process_bytes=process, device=context.device, machine=host_kind(device))


def blocks_and_shapes(config: Config, manifest: Manifest) -> tuple[BlockList, Shapes]:
    """The model's blocks, not built yet, and the shapes of its rows."""
    shapes = shapes_of(manifest.task, manifest.preprocessing)
    return list_blocks(config.model, shapes), shapes


def structure_digest(blocks: BlockList) -> str:
    """A digest of the blocks' layers, sizes and names, without building them; it does not cover their code."""
    digest = hashlib.blake2b(digest_size=16)
    with torch.device("meta"), torch.random.fork_rng(devices=()):
        for block in blocks:
            for name, factory in block.parts.items():
                part = factory()
                sizes = [(path, tuple(parameter.shape)) for path, parameter in part.named_parameters()]
                digest.update(f"{block.name} {block.reads} {block.writes} {name} {part!r} {sizes}\n".encode())
    return digest.hexdigest()


def host_kind(device: torch.device) -> str:
    """The kind of this host: processor, cores that this process may use, memory, and the rank's GPU if it has one."""
    memory_gb = round(psutil.virtual_memory().total / 2 ** 30)
    gpu = f"{torch.cuda.get_device_name(device)}, " if device.type == "cuda" else ""
    return f"{gpu}{_processor()}, {len(os.sched_getaffinity(0))} cores, {memory_gb} GiB, torch {torch.__version__}"


def _memory(context: RankContext) -> tuple[float, float]:
    """The bytes that a rank may use, and those of them that are in use already."""
    if context.device != "cpu":
        free, total = torch.cuda.mem_get_info(torch.device(context.device))
        return float(total), float(total - free)
    process = float(psutil.Process().memory_info().rss)
    return psutil.virtual_memory().available / len(context.local_ranks) + process, process


def _processor() -> str:
    """The processor's model; its architecture if the system does not name the model."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _answers(manifest: Manifest, shapes: Shapes, device: torch.device) -> Callable[[LossSum], Loss]:
    """Turn a task's loss into a loss against random answers, which are drawn once for each shape."""
    @cache
    def answers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if manifest.task == "binary":
            return torch.randint(2, shape, device=device).to(dtype)
        if manifest.task == "multiclass":
            return torch.randint(shapes.num_outputs, shape[:1], device=device)
        if manifest.task == "regression":
            return torch.randn(shape, dtype=dtype, device=device)
        return torch.randint(shapes.vocabulary, shape[:2], device=device)

    return lambda loss_sum: lambda outputs: loss_sum(outputs, answers(tuple(outputs.shape), outputs.dtype)) / len(outputs)
