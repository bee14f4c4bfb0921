"""Layers cut into shards compute what the whole layers do, forward and backward, to rounding, on 2 and 3 real ranks.

The controls do the same with Horovod's own differentiable operations: their gradient is a multiple of the right one (trap
T2), and their unnamed backward pass hangs as soon as the ranks have done different things before (trap T1).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace

import horovod.torch as hvd
import pytest
import torch
from torch import Tensor, nn

from harness.ranks import run_on_ranks
from sparkring.errors import DeadlinePassed, LayoutRefused, RingError
from sparkring.models import losses
from sparkring.models.blocks import LOGITS, StageModule, WholeModel
from sparkring.models.image import image_blocks
from sparkring.models.text import DecoderBlock, text_blocks
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.memory_sets import MemorySetReducer, open_set_reducer
from sparkring.pipelines.parallel.collectives.sets import HorovodSetReducer, SetReducer
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.mesh import Mesh
from sparkring.pipelines.parallel.shared_memory.rounds import PIECE_BYTES
from sparkring.pipelines.parallel.tensor_parallel.functions import sum_of_shards, to_shards
from sparkring.pipelines.parallel.tensor_parallel.linear import ColumnLinear, RowLinear
from sparkring.pipelines.parallel.tensor_parallel.shard_spec import split_evenly
from sparkring.pipelines.parallel.tensor_parallel.sharding import RULES, shard_blocks, shard_specs, whole_tensor
from sparkring.pipelines.parallel.tensor_parallel.vocabulary import next_token_loss_sum, vocabulary_split, whole_logits

VOCABULARY, LENGTH, WIDTH, HEADS, PAD = 13, 6, 12, 4, 12  # 13 tokens and 4 heads: dealt unevenly to 2 or 3 shards
TOLERANCE = 1e-12
HANG_S = 3.0
"""A backward pass of one number that takes longer is taken for hung; ours is done in milliseconds."""
Distances = dict[str, float]
Compared = tuple[Distances, dict[str, bool], dict[str, list[float]]]


def _distance(one: Tensor, other: Tensor | None) -> float:
    assert other is not None
    assert one.shape == other.shape, (one.shape, other.shape)
    return float((one - other).abs().max() / other.abs().max().clamp(min=1e-30))


def _grad_distances(whole: nn.Module, cut: nn.Module, reducer: SetReducer, prefix: str) -> Distances:
    """Of each parameter's gradient, made whole."""
    splits = shard_specs(cut)
    found = {}
    for name, parameter in cut.named_parameters():
        grad = parameter.grad
        assert grad is not None, name
        grad = whole_tensor(grad, splits[name], reducer, f"{prefix}.{name}") if name in splits else grad
        found[f"{prefix}: gradient of {name}"] = _distance(grad, whole.get_parameter(name).grad)
    assert found
    return found


def _layer(make: Callable[[], nn.Module], cut: Callable[[nn.Module], nn.Module], reducer: SetReducer, what: str) -> Distances:
    """A layer beside the same layer cut: outputs, gradient of the input, gradients of the parameters."""
    torch.manual_seed(1)
    whole = make().double()
    torch.manual_seed(1)
    mine = cut(make().double())
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    weights = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    inputs = [x.clone().requires_grad_(), x.clone().requires_grad_()]
    outputs = [module(given) for module, given in zip((whole, mine), inputs, strict=True)]
    for output in outputs:
        (output * weights).sum().backward()
    assert inputs[1].grad is not None
    return {f"{what}: output": _distance(outputs[1], outputs[0]),
            f"{what}: gradient of the input": _distance(inputs[1].grad, inputs[0].grad),
            **_grad_distances(whole, mine, reducer, what)}


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 7), nn.GELU(), nn.Linear(7, WIDTH))


def _cut_mlp(mlp: nn.Module, reducer: SetReducer) -> nn.Module:
    column, activation, row = mlp.children()
    assert isinstance(column, nn.Linear) and isinstance(row, nn.Linear)  # noqa: PT018 - for the type checker
    units = {dim: split_evenly(reducer.size, dim=dim, size=7, what="units") for dim in (0, 1)}
    return nn.Sequential(ColumnLinear(column, reducer, name="0", outputs=units[0]), activation,
                         RowLinear(row, reducer, name="2", inputs=units[1]))


def _whole_state(cut: nn.Module, reducer: SetReducer) -> dict[str, Tensor]:
    """The state of all shards in whole tensors."""
    splits = shard_specs(cut)
    return {name: whole_tensor(tensor, splits[name], reducer, name) if name in splits else tensor
            for name, tensor in cut.state_dict().items()}


def _network(reducer: SetReducer, *, tied: bool) -> Compared:
    """A whole decoder beside one cut into shards: three steps of SGD, then the state in whole tensors."""
    what = "tied network" if tied else "untied network"
    blocks = text_blocks(VOCABULARY, LENGTH, width=WIDTH, layers=2, heads=HEADS, tied=tied)
    whole, cut = WholeModel(blocks, seed=4).double(), StageModule(shard_blocks(blocks, reducer), seed=4).double()
    splits = shard_specs(cut)
    vocabulary = vocabulary_split(VOCABULARY, reducer.size)
    same = {f"{what}: initial {name}": torch.equal(tensor, whole.state_dict()[name])
            for name, tensor in _whole_state(cut, reducer).items()}
    tokens = torch.randint(0, VOCABULARY, (3, LENGTH), generator=torch.Generator().manual_seed(2))
    tokens[1, 4:] = PAD
    distances: Distances = {}
    steppers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (whole, cut)]
    for step in range(3):
        for stepper in steppers:
            stepper.zero_grad()
        logits, part = whole(tokens), cut({"tokens": tokens})[LOGITS]
        distances[f"{what}: logits of step {step}"] = _distance(whole_logits(part, split=vocabulary, reducer=reducer), logits.detach())
        expected = losses.next_token_loss_sum(logits, tokens, pad_id=PAD)
        loss = next_token_loss_sum(part, tokens, pad_id=PAD, split=vocabulary, reducer=reducer)
        expected.backward()
        loss.backward()
        distances[f"{what}: loss of step {step}"] = _distance(loss.detach(), expected.detach())
        distances |= _grad_distances(whole, cut, reducer, f"{what}, step {step}")
        for stepper in steppers:
            stepper.step()
    state = _whole_state(cut, reducer)
    distances |= {f"{what}: final {name}": _distance(tensor, whole.state_dict()[name]) for name, tensor in state.items()}
    again = StageModule(shard_blocks(blocks, reducer), seed=5).double()
    again.load_state_dict({name: splits[name].take(tensor, reducer.index) if name in splits else tensor
                           for name, tensor in state.items()})
    same |= {f"{what}: reloaded {name}": torch.equal(tensor, cut.state_dict()[name]) for name, tensor in again.state_dict().items()}
    same[f"{what}: all names"] = list(state) == list(whole.state_dict())
    same[f"{what}: less is held"] = sum(map(torch.numel, cut.parameters())) < sum(map(torch.numel, whole.parameters()))
    held = {f"{what}: {name}": tensor.flatten().tolist() for name, tensor in cut.state_dict().items() if name not in splits}
    return distances, same, held


def _compare(context: RankContext) -> list[Compared]:
    """Everything in one launch, with sums by Horovod and through memory."""
    with Communicator(context) as communicator:
        everyone = tuple(range(context.size))
        by_horovod, through_memory = HorovodSetReducer(communicator, everyone), open_set_reducer(communicator, everyone)
        assert isinstance(through_memory, MemorySetReducer)
        compared = [_compare_with(reducer) for reducer in (by_horovod, through_memory)]
        communicator.barrier("compared")
        with pytest.raises(LayoutRefused, match="1 heads cannot be dealt to"):
            shard_blocks(text_blocks(VOCABULARY, LENGTH, width=WIDTH, layers=1, heads=1, tied=True), by_horovod)
        with pytest.raises(LayoutRefused, match="no part of this model can be cut into shards: it consists of Conv2d"):
            shard_blocks(image_blocks(1, 2, widths=(8,)), by_horovod)
        return compared


def _compare_with(reducer: SetReducer) -> Compared:
    """Distances, what must be true, and what all shards hold after training."""
    distances = _layer(_mlp, lambda mlp: _cut_mlp(mlp, reducer), reducer, "mlp")
    distances |= _layer(lambda: DecoderBlock(WIDTH, HEADS), lambda block: RULES[DecoderBlock](block, reducer, "block"), reducer, "decoder")
    same: dict[str, bool] = {}
    held: dict[str, list[float]] = {}
    for tied in (True, False):
        more, true, of_all = _network(reducer, tied=tied)
        distances, same, held = distances | more, same | true, held | of_all
    values = torch.tensor([-0.0, 1.5, float("nan")])[:reducer.size]
    one_each = split_evenly(reducer.size, dim=0, size=reducer.size, what="values")
    whole = whole_tensor(values[reducer.index:reducer.index + 1], one_each, reducer, "values")
    same["whole tensors keep their bits"] = torch.equal(whole.view(torch.int32), values.view(torch.int32))
    for dtype in (torch.bfloat16, torch.float32, torch.int64):
        for length in (0, 1, 3 * PIECE_BYTES // 4 + 5):  # the last: several chunks of each type
            mine = (torch.arange(length) % 50 + reducer.index).to(dtype)
            reducer.sum_(mine, f"{dtype}.{length}")
            expected = (torch.arange(length) % 50 * reducer.size + sum(range(reducer.size))).to(dtype)
            same[f"{length} elements of {dtype}"] = torch.equal(mine, expected)
    return distances, same, held


@pytest.mark.parallel
@pytest.mark.parametrize("size", [2, 3])
def test_shards_compute_what_the_whole_layers_do(size: int) -> None:
    results = run_on_ranks(size, _compare)
    for compared in results:
        for (distances, same, held), (_, _, held_by_first) in zip(compared, results[0], strict=True):
            assert {what: distance for what, distance in distances.items() if distance > TOLERANCE} == {}
            assert len(distances) > 80
            assert [what for what, true in same.items() if not true] == []
            assert held == held_by_first  # to the bit: what every shard holds has had the same gradients on each
            assert "tied network: norm.weight" in held


def _replicas_of_shards(context: RankContext) -> Distances:
    """Two replicas of two shards: each replica has half of the rows, gradients are summed over the replicas of a shard."""
    mesh = Mesh((2,), shards=2)
    place = mesh.coordinate(context.rank)
    with Communicator(context, extra_sets=mesh.process_sets(context.hosts)) as communicator:
        shards = open_set_reducer(communicator, mesh.shard_set(place.stage, place.replica))
        replicas = open_set_reducer(communicator, mesh.replica_set(place.stage, place.shard))
        assert (type(shards), type(replicas)) == (MemorySetReducer, HorovodSetReducer)  # shards on one host, replicas on two
        blocks = text_blocks(VOCABULARY, LENGTH, width=WIDTH, layers=1, heads=HEADS, tied=True)
        whole, cut = WholeModel(blocks, seed=4).double(), StageModule(shard_blocks(blocks, shards), seed=4).double()
        tokens = torch.randint(0, VOCABULARY, (5, LENGTH), generator=torch.Generator().manual_seed(2))
        mine = tokens[:3] if place.replica == 0 else tokens[3:]
        vocabulary = vocabulary_split(VOCABULARY, 2)
        losses.next_token_loss_sum(whole(tokens), tokens, pad_id=PAD).backward()
        next_token_loss_sum(cut({"tokens": mine})[LOGITS], mine, pad_id=PAD, split=vocabulary, reducer=shards).backward()
        for name, parameter in cut.named_parameters():
            assert parameter.grad is not None
            replicas.sum_(parameter.grad, f"gradient.{name}")
        return _grad_distances(whole, cut, shards, "gradient")


@pytest.mark.parallel
def test_replicas_of_shards_sum_to_the_gradient_of_all_rows() -> None:
    for distances in run_on_ranks(4, _replicas_of_shards, hosts=(0, 0, 1, 1)):
        assert {what: distance for what, distance in distances.items() if distance > TOLERANCE} == {}


def _with_horovod_s_gradient(context: RankContext) -> list[float]:
    """Gradient of the column layer's weight, over the right one: with our pair of functions, then with Horovod's sum as ``g``."""
    with Communicator(context) as communicator:
        reducer = HorovodSetReducer(communicator, tuple(range(context.size)))
        ratios = []
        for name in ("ours", "theirs"):
            column, row = (torch.full((1,), value + context.rank, dtype=torch.float64, requires_grad=True) for value in (2.0, 3.0))
            x = torch.ones(1, dtype=torch.float64, requires_grad=True)
            part = torch.tanh(to_shards(x, reducer, f"{name}.x") * column) * row
            total = sum_of_shards(part, reducer, name) if name == "ours" else hvd.allreduce(part, name=name, op=hvd.Sum)
            total.sum().backward()
            right = row.detach() * (1 - torch.tanh(column.detach()) ** 2)
            assert column.grad is not None
            ratios.append(float(column.grad / right))
        return ratios


@pytest.mark.parallel
def test_control_the_gradient_of_horovod_s_sum_is_as_many_times_too_large_as_there_are_shards() -> None:
    assert run_on_ranks(2, _with_horovod_s_gradient) == [pytest.approx([1.0, 2.0], rel=1e-12)] * 2


def _after_different_histories(context: RankContext, function: str) -> bool:
    """Whether a backward pass ends within a deadline when rank 0 has started one operation that rank 1 has not."""
    communicator = Communicator(context)
    reducer = HorovodSetReducer(communicator, tuple(range(context.size)))
    if context.rank == 0:
        hvd.allreduce_async_(torch.zeros(1), name="not yet on rank 1", op=hvd.Sum)
    x = torch.ones(1, requires_grad=True)
    total = to_shards(x, reducer, "named") if function == "ours" else hvd.allreduce(x, name="named", op=hvd.Sum)
    backward = threading.Thread(target=total.sum().backward, daemon=True)
    backward.start()
    backward.join(timeout=HANG_S)
    ended = not backward.is_alive()
    communicator.barrier("both have looked")  # a rank that left earlier would end the other's wait with an error
    return ended


@pytest.mark.parallel
def test_named_sums_pass_whatever_the_ranks_did_before() -> None:
    assert run_on_ranks(2, _after_different_histories, "ours") == [True, True]


@pytest.mark.parallel
def test_control_horovod_s_unnamed_backward_pass_hangs_after_different_histories() -> None:
    assert run_on_ranks(2, _after_different_histories, "theirs") == [False, False]


def _one_shard_does_not_come(context: RankContext) -> str:
    told = ""
    with Communicator(replace(context, deadline_s=5.0)) as communicator:
        through_memory = open_set_reducer(communicator, (0, 1))
        assert isinstance(through_memory, MemorySetReducer)
        reducers = (HorovodSetReducer(communicator, (0, 1)), through_memory)
        communicator.context = context  # in which the other rank may take its time until both have told
        for reducer in reducers if context.rank == 1 else ():
            with pytest.raises(DeadlinePassed) as caught:
                reducer.sum_(torch.zeros(2), "shrink.forward")
            told += str(caught.value)
        communicator.barrier("told")
    return told


@pytest.mark.parallel
def test_a_shard_that_does_not_come_is_told_within_the_deadline() -> None:
    _, told = run_on_ranks(2, _one_shard_does_not_come)
    assert "set.0-1.shrink.forward: other ranks did not join within 5 s" in told
    assert "shrink.forward: other ranks did not join within 5 s (ranks [0])" in told


def _one_shard_dies(context: RankContext) -> str:
    communicator = Communicator(context)
    reducer = open_set_reducer(communicator, (0, 1))
    assert isinstance(reducer, MemorySetReducer)
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        reducer.sum_(torch.zeros(2), "shrink.forward")
    except RingError as error:
        return f"{type(error).__name__}: {error}"
    return "summed"


@pytest.mark.parallel
def test_a_shard_that_has_died_is_told_at_once_and_not_at_the_deadline() -> None:
    told, _ = run_on_ranks(2, _one_shard_dies, doomed=(1,))
    assert told.startswith("RingEnded: shrink.forward")
    assert "the process of rank 1 has ended" in told
