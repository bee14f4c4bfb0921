"""Which micro-batches are whose, and how many rows they have, also for a stage that reads nothing."""

from __future__ import annotations

import torch

from sparkring.models.inputs import ROW_SEEDS
from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.data.order.rowhash import row_bits
from sparkring.pipelines.training.job.precision import PRECISIONS
from sparkring.pipelines.training.strategies.stages import MicroBatches
from sparkring.pipelines.training.strategies.step import Inputs


def _inputs(*names: str) -> Inputs:
    return Inputs(names=names, label="label", precision=PRECISIONS["float64"], device=torch.device("cpu"), seed=5)


def test_a_replica_finds_its_micro_batches_by_their_numbers_over_all_replicas() -> None:
    tensors = {"x": torch.arange(6.0), "label": torch.arange(6), "row_id": torch.arange(6)}
    second = MicroBatches(Batch(0, tensors, 6, 20, (2, 3, 1)), _inputs("x"), replica=1, replicas=2)  # does 1, 3 and 5
    assert {number: second.inputs(number)["x"].tolist() for number in (1, 3, 5)} == {1: [0, 1], 3: [2, 3, 4], 5: [5]}
    assert second.labels(3).tolist() == [2, 3, 4]
    assert [second.rows(number) for number in (1, 3, 5)] == [2, 3, 1]
    assert MicroBatches(Batch(0, {}, 0, 20, (2, 3, 1)), _inputs(), replica=1, replicas=2).rows(3) == 3


def test_row_seeds_follow_from_seed_epoch_and_row_where_the_model_asks_for_them() -> None:
    ids = torch.tensor([7, 3])
    for epoch in (0, 4):
        parts = MicroBatches(Batch(0, {"row_id": ids}, 2, 2, (2,), epoch), _inputs(ROW_SEEDS), replica=0, replicas=1)
        assert parts.inputs(0)[ROW_SEEDS].tolist() == row_bits(ids.numpy(), seed=5, epoch=epoch).view("int64").tolist()


def test_a_batch_that_is_placed_ahead_gives_the_step_what_it_would_place_itself() -> None:
    tensors = {"x": torch.arange(6.0), "label": torch.arange(6), "row_id": torch.arange(6), "unused": torch.zeros(6)}
    batch, inputs = Batch(0, tensors, 6, 20, (2, 4), 3), _inputs("x", ROW_SEEDS)
    placed = inputs.placed(batch)
    assert placed.tensors["x"].dtype == torch.float64
    assert torch.equal(placed.tensors["row_id"], tensors["row_id"]), "receipts are made of them"
    for micro_batch in range(2):
        late, ahead = (MicroBatches(one, inputs, replica=0, replicas=1) for one in (batch, placed))
        assert late.labels(micro_batch).tolist() == ahead.labels(micro_batch).tolist()
        before, given = late.inputs(micro_batch), ahead.inputs(micro_batch)
        assert {name: tensor.tolist() for name, tensor in before.items()} == {name: tensor.tolist() for name, tensor in given.items()}


def test_a_stage_places_what_its_batches_have() -> None:
    inputs = Inputs(names=("tokens", ROW_SEEDS), label="tokens", precision=PRECISIONS["float32"], device=torch.device("cpu"), seed=5)
    last = inputs.placed(Batch(0, {"tokens": torch.ones(2, 3, dtype=torch.int64)}, 2, 2, (2,)))
    assert last.tensors.keys() == {"tokens"}, "no row ids, so no seeds"
    assert inputs.placed(Batch(0, {}, 0, 2, (2,))).tensors == {}
