"""Stages where something is missing: rows, parameters, an owner; and sums and bytes where something is too much."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.models.blocks import BlockList, StageModule
from sparkring.models.image import image_blocks
from sparkring.models.losses import cross_entropy_sum
from sparkring.models.sequential import sequential_blocks
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.parallel.allreduce.direct import DirectReducer
from sparkring.pipelines.parallel.allreduce.gradients import open_gradient_reducer
from sparkring.pipelines.parallel.allreduce.horovod_sums import HorovodSums
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.horovod_handles import await_handles
from sparkring.pipelines.parallel.collectives.memory_sets import open_set_reducer
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.schedules.generators.catalogue import build_schedule
from sparkring.pipelines.parallel.schedules.schedule import Worker
from sparkring.pipelines.parallel.stages.executor import Executor
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.job.precision import PRECISIONS
from sparkring.pipelines.training.strategies.gradient_ring import GradientRing
from sparkring.pipelines.training.strategies.pipelined_step import PipelinedStep, Share
from sparkring.pipelines.training.strategies.signals import Signals
from sparkring.pipelines.training.strategies.stages import MicroBatches
from sparkring.pipelines.training.strategies.step import Inputs
from sparkring.pipelines.training.train_rank import train_rank
from tests.support import seams
from tests.support.pipeline_jobs import ImageJob, SkipJob, TextJob
from tests.support.pipelines import ROWS, Case, Job, Values, furthest, train_pipelined, train_serially
from tests.support.training import largest_difference, train_config, weights_of_run

FEW = 3
"""Rows of a step: fewer than its micro-batches, so some of these are empty."""
SIZES = (1000, 3001, 517, 2048, 900)


class FewRows(Job):
    """Another job with a few rows a step."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.loss_sum = job.loss_sum  # type: ignore[method-assign]

    def blocks(self) -> BlockList:
        """The same."""
        return self.job.blocks()

    def batch(self, step: int) -> dict[str, Tensor]:
        """The first rows."""
        return {name: tensor[:FEW] for name, tensor in self.job.batch(step).items()}


class ActivationJob(SkipJob):
    """A plain sequence whose middle module holds no parameter and works in place."""

    def blocks(self) -> BlockList:
        """Linear, activation, linear; with weights from their seed, so that they are the same in every process."""
        with torch.device("meta"):
            return sequential_blocks(nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 2)), reads="features")


class BareEndsJob(SkipJob):
    """A plain sequence whose first and last modules hold no parameter."""

    def blocks(self) -> BlockList:
        """Activation, linear, activation."""
        with torch.device("meta"):
            return sequential_blocks(nn.Sequential(nn.Tanh(), nn.Linear(4, 2), nn.ReLU(inplace=True)), reads="features")


def _same_as_serial(job: Job, cases: list[Case]) -> None:
    everyone = run_on_ranks(sum(cases[0].replicas), train_pipelined, job, cases)
    for number, case in enumerate(cases):
        wanted, losses = train_serially(job, micro_batches=case.micro_batches, optimizer=case.optimizer)
        seen: set[str] = set()
        for state, got_losses, _ in (results[number] for results in everyone):
            assert furthest(state, wanted) < 1e-10, str(case)
            assert got_losses == pytest.approx(losses, rel=1e-10), str(case)
            seen |= state.keys()
        assert seen == wanted.keys(), str(case)


@pytest.mark.parametrize("job", [SkipJob(), TextJob(), ImageJob()], ids=["skip connection", "decoder", "batch normalisation"])
def test_micro_batches_without_rows_change_nothing(job: Job) -> None:
    _same_as_serial(FewRows(job), [
        Case((2, 1), "1f1b", micro_batches=8), Case((2, 1), "zero_bubble", micro_batches=8, transport="horovod", recompute="always"),
        Case((1, 2), "gpipe", micro_batches=6)])


@pytest.mark.parametrize("job", [ActivationJob(), BareEndsJob()], ids=["in the middle", "at both ends"])
def test_a_stage_without_parameters_trains_with_the_others(job: Job) -> None:
    _same_as_serial(job, [
        Case((1, 1, 1), "1f1b", transport="horovod"), Case((1, 1, 1), "zero_bubble", optimizer="adam"),
        Case((1, 1, 1), "zero_bubble", recompute="except_last"), Case((1, 1, 1), "gpipe", recompute="always")])


def _job(dataset: Path, folder: Path, parallel: dict[str, Any], *, ranks: int) -> dict[str, Any]:
    config = train_config(folder, model={"hidden": (8,)}, train={
        "num_ranks": ranks, "epochs": 1, "batch_rows": 128, "precision": "float64", "lanes": 24, "parallel": parallel,
        "optimizer": {"name": "adam", "lr": 0.003, "schedule": "constant", "clip_norm": 0.1}})
    return TrainJob(config=config, dataset_url=Dataset(str(dataset)).url, dataset_version=1, run_url=str(folder / "run"), generation=0,
                    lanes=24).model_dump(mode="json")


def test_more_replicas_than_parameters_share_an_optimizer(tmp_path: Path) -> None:
    dataset = tmp_path / "dataset"
    write_dataset(dataset, [[300], [211]])
    layouts: dict[str, dict[str, Any]] = {"serial": {}, "shared": {"replicas": [2, 1], "cut": [1, 2], "shard_optimizer": True}}
    for name, parallel in layouts.items():
        ranks = sum(parallel.get("replicas", [1]))
        run_on_ranks(ranks, train_rank, _job(dataset, tmp_path / name, parallel, ranks=ranks))
    assert largest_difference(weights_of_run(tmp_path / "shared"), weights_of_run(tmp_path / "serial")) < 1e-10


def _spoiled(context: RankContext, factors: list[float]) -> dict[str, Values]:
    """Train some steps on images that are multiplied by these factors; the state that is left."""
    with Communicator(context) as communicator:
        chunk = StageModule(image_blocks(1, 3, widths=(4,), norm="batch"), seed=1).double()
        ring, alone = GradientRing(chunk.parameters(), communicator, bucket_mb=1.0), open_set_reducer(communicator, (0,))
        share = Share((chunk,), alone, cross_entropy_sum, ring, (), torch.optim.SGD(chunk.parameters(), lr=0.1), alone, speaks=True)
        inputs = Inputs(("image",), "label", PRECISIONS["float64"], torch.device("cpu"), seed=0)
        executor = Executor(build_schedule("1f1b", (1,), 2), Worker(0, 0), {0: chunk}, rank_of=lambda _: 0)
        rows = ImageJob().batch(0)
        for number, factor in enumerate(factors):
            ring.begin()
            batch = Batch(number, rows | {"image": rows["image"] * factor}, ROWS, ROWS, (7, ROWS - 7))
            executor.run(PipelinedStep(share, MicroBatches(batch, inputs, replica=0, replicas=1), Signals(), global_rows=ROWS))
        return {name: tensor.numpy().copy() for name, tensor in chunk.state_dict().items()}


def test_a_step_that_is_not_finite_leaves_running_statistics_as_they_were() -> None:
    (spared,), (wanted,) = (run_on_ranks(1, _spoiled, factors) for factors in ([1.0, float("nan"), 2.0], [1.0, 2.0]))
    assert spared.keys() == wanted.keys()
    for name, values in spared.items():
        np.testing.assert_array_equal(values, wanted[name], err_msg=name)
    (other,) = run_on_ranks(1, _spoiled, [1.0, 3.0, 2.0])
    assert (other["norm.running_mean"] != wanted["norm.running_mean"]).any(), "the control: a step that is finite moves them"


def _bytes_in_pieces(context: RankContext, piece: int) -> tuple[list[bytes], int]:
    """What ranks say to each other by Horovod in pieces of so many bytes, and the most that one of its operations got or gave."""
    seams.replace(seams.COMMUNICATOR_PIECE_BYTES, piece)
    mine, most = bytes([context.rank]) * (0, 1, 5021)[context.rank], 0
    finish = Communicator._finish

    def noting(self: Communicator, *args: Any, **named: Any) -> Tensor:
        nonlocal most
        moved = finish(self, *args, **named)
        most = max(most, len(moved) if moved.dtype is torch.uint8 else 0)
        return moved

    seams.replace(seams.COMMUNICATOR_FINISH, noting)
    with Communicator(context) as communicator:
        said = [*communicator.gather_bytes(mine, name="parts"), communicator.broadcast_bytes(bytes(range(256)) * 11, name="whole"),
                communicator.broadcast_bytes(b"", name="nothing")]
    return said, most


def test_bytes_beyond_what_horovod_counts_travel_in_pieces() -> None:
    """Horovod counts elements in int32: a state of 2 GiB is more than one of its operations can move."""
    whole = [b"", b"\1", b"\2" * 5021, bytes(range(256)) * 11, b""]
    assert run_on_ranks(3, _bytes_in_pieces, 1000, shared_memory=False) == [(whole, 1000)] * 3
    assert run_on_ranks(3, _bytes_in_pieces, 1 << 30, shared_memory=False) == [(whole, 5022)] * 3, "the control: all at once"


def _sums(context: RankContext, fusion: str | None) -> list[bytes]:
    """The sums of some buffers, all under way at once and then one after the other."""
    if fusion is not None:
        os.environ["HOROVOD_FUSION_THRESHOLD"] = fusion
    found = []
    with Communicator(context) as communicator:
        reducer = open_gradient_reducer(communicator, SIZES, torch.float32, device=torch.device("cpu"))
        assert isinstance(reducer, DirectReducer)
        assert isinstance(reducer._sums, HorovodSums)
        for at_once in (True, False):
            generator = torch.Generator().manual_seed(context.rank)
            for index, buffer in enumerate(reducer.buffers):
                buffer.copy_(torch.randn(len(buffer), generator=generator))
                reducer.ready(index)
                if not at_once:
                    await_handles([reducer._sums._handles[index]], what="one buffer", deadline_s=20)
            reducer.finish()
            found.append(b"".join(buffer.numpy().tobytes() for buffer in reducer.buffers))
    return found


def test_a_ring_gives_the_same_bits_however_its_buffers_meet() -> None:
    """Horovod sums what is ready in the same cycle as one tensor, and the order of a sum depends on the place in that."""
    for at_once, in_turn in run_on_ranks(3, _sums, None, shared_memory=False, cycle_ms=50):
        assert at_once == in_turn
    at_once, in_turn = run_on_ranks(3, _sums, str(1 << 27), shared_memory=False, cycle_ms=50)[0]
    assert at_once != in_turn, "the control: with Horovod's own default they differ"
