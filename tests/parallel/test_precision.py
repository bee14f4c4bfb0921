"""Mixed precision: a decoder trained in bfloat16 by stages is the one that one process trains so, and float32 trains another one.

To the bit where stages add nothing up in another order: the embedding is not the output matrix too, and gradients are not clipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.parallel.transports.linked import LinkedTransport
from sparkring.pipelines.training.events.writer import read_events
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.train_rank import train_rank
from tests.support import seams
from tests.support.token_dataset import write_token_dataset
from tests.support.training import largest_difference, train_config, weights_of_run

ALONE: dict[str, Any] = {"micro_batches": 4}
TO_THE_BIT: dict[str, tuple[int, dict[str, Any]]] = {
    "two stages": (2, {"replicas": [1, 1], "micro_batches": 4}),
    "three stages by Horovod, forward passes done again": (
        3, {"replicas": [1, 1, 1], "micro_batches": 4, "transport": "horovod", "recompute": "always"}),
}
NEARLY: dict[str, tuple[int, dict[str, Any]]] = {
    "first stage twice, gradients in halves": (3, {"replicas": [2, 1], "micro_batches": 4, "schedule": "zero_bubble"}),
    "two shards": (2, {"replicas": [1], "shards": 2, "micro_batches": 4}),
}
NEAR = 0.01
"""Of losses where sums come in another order: a weight is rounded to 8 bits before it is used, and may fall to the other side."""
FAR = 1e-3
"""Of weights."""


def _job(dataset: Path, folder: Path, ranks: int, parallel: dict[str, Any], *, precision: str = "bf16", kind: str = "text",
         epochs: int = 2, clip_norm: float | None = None) -> dict[str, Any]:
    model = {"kind": "text", "width": 16, "layers": 2, "heads": 4, "tied": False} if kind == "text" else {"hidden": (16, 8)}
    config = train_config(folder, model=model, train={
        "num_ranks": ranks, "epochs": epochs, "batch_rows": 48, "seed": 3, "precision": precision, "lanes": 24, "parallel": parallel,
        "optimizer": {"name": "adamw", "lr": 0.01, "schedule": "constant", "clip_norm": clip_norm}})
    return TrainJob(config=config, dataset_url=Dataset(str(dataset)).url, dataset_version=1, run_url=str(folder / "run"),
                    generation=0, lanes=24).model_dump(mode="json")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens") / "dataset"
    write_token_dataset(folder, (70, 30, 45, 52))
    return folder


@pytest.fixture(scope="module")
def alone(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process in bfloat16, with as many micro-batches."""
    folder = tmp_path_factory.mktemp("alone")
    run_on_ranks(1, train_rank, _job(dataset, folder, 1, ALONE))
    return folder


@pytest.mark.parametrize("name", [*TO_THE_BIT, *NEARLY])
def test_stages_train_in_bfloat16_what_one_process_does(dataset: Path, alone: Path, tmp_path: Path, name: str) -> None:
    ranks, parallel = (TO_THE_BIT | NEARLY)[name]
    run_on_ranks(ranks, train_rank, _job(dataset, tmp_path, ranks, parallel))
    assert _train_losses(tmp_path) == pytest.approx(_train_losses(alone), rel=NEAR)
    if name in TO_THE_BIT:
        assert largest_difference(weights_of_run(tmp_path), weights_of_run(alone)) == 0


def test_gradients_that_are_added_up_and_clipped_train_nearly_what_one_process_does(dataset: Path, alone: Path, tmp_path: Path) -> None:
    layouts: dict[str, tuple[int, dict[str, Any]]] = {
        "alone": (1, ALONE), "first stage twice, optimizer shared out": (
            3, {"replicas": [2, 1], "micro_batches": 4, "schedule": "zero_bubble", "recompute": "except_last", "shard_optimizer": True}),
        "replicas": (2, {"micro_batches": 4})}
    for name, (ranks, parallel) in layouts.items():
        run_on_ranks(ranks, train_rank, _job(dataset, tmp_path / name, ranks, parallel, clip_norm=0.05))
        assert _train_losses(tmp_path / name) == pytest.approx(_train_losses(tmp_path / "alone"), rel=NEAR), name
    assert largest_difference(weights_of_run(tmp_path / "alone"), weights_of_run(alone)) > FAR, "the control: unclipped, others"


def _train_losses(folder: Path) -> list[float]:
    return [record["train_loss"] for record in read_events(str(folder / "run")) if record["event"] == "epoch"]


def test_control_float32_trains_other_weights_and_both_learn(dataset: Path, alone: Path, tmp_path: Path) -> None:
    run_on_ranks(1, train_rank, _job(dataset, tmp_path, 1, ALONE, precision="float32"))
    assert largest_difference(weights_of_run(tmp_path), weights_of_run(alone)) > FAR
    for folder in (tmp_path, alone):
        losses = _train_losses(folder)
        assert losses[-1] < 0.9 * losses[0], losses
    assert {str(tensor.dtype) for tensor in weights_of_run(alone).values()} == {"torch.float32"}


def _travelling(context: RankContext, job: dict[str, Any]) -> list[str]:
    """Types of the tensors that this rank sends."""
    seen: set[str] = set()
    send = LinkedTransport.send

    def noting(self: LinkedTransport, edge: Any, micro_batch: int, tensors: Any, **others: Any) -> None:
        seen.update(str(tensor.dtype) for tensor in tensors)
        send(self, edge, micro_batch, tensors, **others)

    seams.replace(seams.LINKED_TRANSPORT_SEND, noting)
    train_rank(context, job)
    return sorted(seen)


def test_what_layers_make_in_bfloat16_travels_so_both_ways(tmp_path: Path) -> None:
    write_dataset(tmp_path / "dataset", ([300],))
    for precision, expected in (("bf16", ["torch.bfloat16"]), ("float32", ["torch.float32"])):
        job = _job(tmp_path / "dataset", tmp_path / precision, 2, {"replicas": [1, 1], "micro_batches": 4, "cut": ["layers.2"]},
                   precision=precision, kind="tabular", epochs=1)
        assert run_on_ranks(2, _travelling, job) == [expected, expected]
