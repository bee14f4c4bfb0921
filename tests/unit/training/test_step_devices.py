"""Training steps on a device that is not the host's: they mix no tensors of both, and wait for the device as rarely as they can.

The device is torch's ``meta``, which needs no GPU. FakeTensorMode refuses operations on tensors of two devices, as CUDA's kernels do, and
values of a device's tensors can only be read where ``Reads`` answers, which counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode

from sparkring.conf.schema import Config
from sparkring.models.batch_norm import StepBatchNorm
from sparkring.models.blocks import Block, BlockList, StageModule, WholeModel, X
from sparkring.models.build import Shapes, list_blocks
from sparkring.models.losses import cross_entropy_sum, log_loss_sum, next_token_loss_sum
from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.parallel.clock import HostClock
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.schedules.generators.catalogue import build_schedule
from sparkring.pipelines.parallel.schedules.schedule import Worker
from sparkring.pipelines.parallel.stages.executor import Executor
from sparkring.pipelines.parallel.tensor_parallel import vocabulary
from sparkring.pipelines.parallel.tensor_parallel.sharding import AbsentShards, shard_blocks
from sparkring.pipelines.training.job.optimizer import clip_before_step
from sparkring.pipelines.training.job.precision import PRECISIONS
from sparkring.pipelines.training.job.tasks import LossSum, input_tensors
from sparkring.pipelines.training.profiling.block_counts import random_inputs
from sparkring.pipelines.training.strategies.gradient_ring import GradientRing
from sparkring.pipelines.training.strategies.pipelined_step import PipelinedStep, Share
from sparkring.pipelines.training.strategies.signals import Signals
from sparkring.pipelines.training.strategies.stages import MicroBatches
from sparkring.pipelines.training.strategies.step import Inputs, train_step
from sparkring.pipelines.training.strategies.step_times import StepTimes
from tests.support.configs import MINIMAL

DEVICE = torch.device("meta")
ROWS = 8
MIXED = "(different|same) device"
READS = {"item", "cpu", "numpy", "__float__", "__bool__", "__int__", "__index__"}


class Reads(TorchFunctionMode):
    """Counts the reads of a device's values, for each of which a host waits until a GPU has done all that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        name = getattr(func, "__name__", "")
        if name not in READS or not isinstance(args[0], Tensor):
            return func(*args, **(kwargs or {}))
        self.count += args[0].device == DEVICE
        match name:
            case "cpu":
                return func(*args, **(kwargs or {}))
            case "numpy":
                assert args[0].device != DEVICE, "CUDA tensors have no numpy()"
                return np.zeros(tuple(args[0].shape), dtype=np.int64)  # row ids; there are no values in this mode
            case "__bool__":
                return True
            case _:
                return 1.0 if name in {"item", "__float__"} else 1

    def tolist(self, tensor: Tensor) -> list[Any]:
        """FakeTensor has its own, which reads number by number; a GPU's are copied at once."""
        self.count += tensor.device == DEVICE
        zeros: list[Any] = np.zeros(tuple(tensor.shape)).tolist()
        return zeros


class Buffers:
    """The gradients' buffers of a ring of one rank, which has nothing to sum."""

    description = "nothing"

    def __init__(self, buffers: Sequence[Tensor]) -> None:
        self.buffers = buffers

    def ready(self, index: int) -> None: ...

    def finish(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Network:
    """A shipped network and its task."""

    model: dict[str, Any]
    shapes: Shapes
    label: str
    loss_sum: LossSum
    shards: int = 1
    weighted: bool = False


SEQUENCES = Shapes(length=5, vocabulary=12)
DECODER = {"kind": "text", "width": 8, "layers": 2, "heads": 2}
NETWORKS = {
    "tables": Network({"kind": "tabular", "hidden": [8, 4], "dropout": 0.2}, Shapes(num_numeric=3, cardinalities=(5, 7)), "label",
                      log_loss_sum),
    "tables with weights": Network({"kind": "tabular", "hidden": [8]}, Shapes(num_numeric=3, num_outputs=4), "label", cross_entropy_sum,
                                   weighted=True),
    "images": Network({"kind": "image", "widths": [8, 16], "dropout": 0.2}, Shapes(image=(3, 8, 8), num_outputs=4), "label",
                      cross_entropy_sum),
    "images with batch norms": Network({"kind": "image", "widths": [8, 16], "norm": "batch"}, Shapes(image=(3, 8, 8), num_outputs=4),
                                       "label", cross_entropy_sum),
    "text": Network({**DECODER, "dropout": 0.2}, SEQUENCES, "tokens", partial(next_token_loss_sum, pad_id=0)),
    "tied text": Network({**DECODER, "tied": True}, SEQUENCES, "tokens", partial(next_token_loss_sum, pad_id=0)),
    "text in shards": Network(DECODER, SEQUENCES, "tokens", partial(
        vocabulary.next_token_loss_sum, pad_id=0, split=vocabulary.vocabulary_split(12, 2), reducer=AbsentShards(2)), shards=2),
}


def batch_of(network: Network, config: Config, micro_batches: int) -> tuple[Batch, Inputs]:
    """A batch on the host, and what a step takes of it on the device."""
    tensors = random_inputs(config, network.shapes, ROWS, torch.device("cpu")) | {"row_id": torch.arange(ROWS)}
    tensors.pop("row_seeds", None)
    if network.label == "label":
        binary = network.shapes.num_outputs == 1
        tensors["label"] = torch.rand(ROWS).round() if binary else torch.randint(network.shapes.num_outputs, (ROWS,))
    if network.weighted:
        tensors["weight"] = torch.rand(ROWS, dtype=torch.float64)
    inputs = Inputs(names=input_tensors(config.model), label=network.label, precision=PRECISIONS["float32"], device=DEVICE, seed=1,
                    weighted=network.weighted)
    return Batch(0, tensors, ROWS, ROWS, (ROWS // micro_batches,) * micro_batches), inputs


@contextmanager
def on_the_device() -> Iterator[Reads]:
    reads = Reads()

    def tolist(tensor: Tensor) -> list[Any]:
        return reads.tolist(tensor)

    with patch.object(FakeTensor, "tolist", tolist), FakeTensorMode(allow_non_fake_inputs=True), reads:
        yield reads


def blocks_of(network: Network) -> tuple[Config, BlockList]:
    config = Config.model_validate(MINIMAL | {"model": network.model, "train": {"parallel": {"micro_batches": 2}}})
    return config, shard_blocks(list_blocks(config.model, network.shapes), AbsentShards(network.shards))


def ring_of(model: nn.Module) -> GradientRing:
    context = RankContext(rank=0, hosts=(0,), device=str(DEVICE), token="0" * 32, deadline_s=1.0, shared_memory=False)

    def opened(communicator: object, sizes: Sequence[int], dtype: torch.dtype, *, device: torch.device, **_: object) -> Buffers:
        return Buffers([torch.zeros(size, dtype=dtype, device=device) for size in sizes])

    communicator: Any = SimpleNamespace(context=context)
    return GradientRing(model.parameters(), communicator, bucket_mb=0.001, open_gradient_reducer=opened)


def optimizer_of(model: nn.Module, *, clipped: bool) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)  # there are no fused kernels for this device
    if clipped:
        clip_before_step(optimizer, 1.0)
    return optimizer


def reads_of_plain_step(network: Network, *, clipped: bool = False) -> int:
    """Do a data-parallel step; returns the number of reads."""
    config, blocks = blocks_of(network)
    batch, inputs = batch_of(network, config, 1)
    model = WholeModel(blocks, seed=1)
    with on_the_device() as reads:
        inputs.place(model)
        assert {parameter.device for parameter in model.parameters()} == {DEVICE}
        ring, optimizer = ring_of(model), optimizer_of(model, clipped=clipped)
        placed = inputs.placed(batch)
        assert {name for name, tensor in placed.tensors.items() if tensor.device != DEVICE} == {"row_id"}
        result = train_step(model, placed, inputs, ring, optimizer, StepTimes(HostClock()), network.loss_sum)
        assert result.updated
        assert {parameter.grad.device for parameter in model.parameters() if parameter.grad is not None} == {DEVICE}
    return reads.count


def reads_of_staged_step(network: Network, micro_batches: int, *, looks: Callable[[Tensor], object] = lambda _: None) -> int:
    """Do a step of one stage, which looks at each micro-batch's loss; returns the number of reads."""
    config, blocks = blocks_of(network)
    batch, inputs = batch_of(network, config, micro_batches)
    chunk = StageModule(blocks, seed=1)

    def loss_sum(logits: Tensor, *targets: Tensor) -> Tensor:
        loss = network.loss_sum(logits, *targets)
        looks(loss)
        return loss

    with on_the_device() as reads:
        inputs.place(chunk)
        ring, alone = ring_of(chunk), AbsentShards(1)
        share = Share((chunk,), alone, loss_sum, ring, (), optimizer_of(chunk, clipped=False), alone, speaks=True)
        ring.begin()
        parts = MicroBatches(inputs.placed(batch), inputs, replica=0, replicas=1)
        step = PipelinedStep(share, parts, Signals(), global_rows=ROWS)
        Executor(build_schedule("1f1b", (1,), micro_batches), Worker(0, 0), {0: chunk}, rank_of=lambda _: 0, device=DEVICE).run(step)
        assert step.outcome[2], "updated"
    return reads.count


@pytest.mark.parametrize("network", [pytest.param(network, id=name) for name, network in NETWORKS.items() if "norms" not in name])
def test_a_plain_step_of_a_shipped_network_mixes_no_devices_and_reads_the_loss_and_whether_all_is_finite(network: Network) -> None:
    assert reads_of_plain_step(network) == 2


def test_clipping_reads_once_however_many_gradients_there_are() -> None:
    shallow, deep = (Network({"kind": "tabular", "hidden": [4] * layers}, Shapes(num_numeric=3), "label", log_loss_sum)
                     for layers in (1, 9))
    assert reads_of_plain_step(shallow, clipped=True) == reads_of_plain_step(deep, clipped=True) == 3


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_a_step_in_stages_mixes_no_devices_and_reads_as_often_for_many_micro_batches_as_for_few(network: Network) -> None:
    assert reads_of_staged_step(network, 2) == reads_of_staged_step(network, 8) <= 4


def test_control_a_loss_that_is_looked_at_is_read_for_each_micro_batch() -> None:
    few, many = (reads_of_staged_step(NETWORKS["tables"], micro_batches, looks=float) for micro_batches in (2, 8))
    assert many - few == 6


def _shifted(parts: Sequence[nn.Module], x: Tensor) -> Tensor:
    shifted: Tensor = parts[0](x) + torch.ones(x.shape[1])  # made on the host
    return shifted.sum(dim=1)


def test_control_a_network_that_makes_a_tensor_on_the_host_is_found() -> None:
    blocks = BlockList((Block("layer", {"layer": lambda: nn.Linear(3, 3)}, run=_shifted),), inputs=(X,), outputs=(X,))
    model = StageModule(blocks, seed=1)
    assert model({X: torch.ones(2, 3)})[X].shape == (2,), "on the host it works"
    with on_the_device(), pytest.raises(RuntimeError, match=MIXED):
        model.to(DEVICE)({X: torch.ones(2, 3, device=DEVICE)})


def test_the_sums_of_batch_norms_move_to_the_device_and_keep_their_type() -> None:
    norm = StepBatchNorm(3).to(torch.float32)
    assert norm.sums.dtype == torch.float64
    norm.to(DEVICE)
    assert (norm.sums.dtype, norm.sums.device) == (torch.float64, DEVICE)
