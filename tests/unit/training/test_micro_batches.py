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
