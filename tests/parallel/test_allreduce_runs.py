"""Runs whose gradients travel between hosts beside Horovod: exact by every way, and by 16 bits near it, which is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.cli.stored.audit import _text as audit_text
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.train_rank import train_rank
from sparkring.spark_jobs.stored.audit import audit
from tests.support.training import largest_difference, records_in, train_config, weights_of_run

HOSTS, LANES = (0, 0, 1), 25
ROWS = [700, 333]

pytestmark = pytest.mark.parallel


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows") / "dataset"
    write_dataset(folder, (ROWS,), validation_rows=100)
    return folder


def _train(dataset: Path, folder: Path, *, precision: str = "float64", **ring: Any) -> Path:
    config = train_config(folder, model={"hidden": (64,)}, train={
        "num_ranks": len(HOSTS), "epochs": 2, "batch_rows": 100, "precision": precision, "lanes": LANES, "seed": 5, "ring": ring,
        "optimizer": {"name": "sgd", "lr": 0.1, "schedule": "constant"}})
    job = TrainJob(config=config, dataset_url=Dataset(str(dataset)).url, dataset_version=1, run_url=str(folder / "run"), generation=0,
                   lanes=LANES)
    run_on_ranks(len(HOSTS), train_rank, job.model_dump(mode="json"), hosts=HOSTS)
    return folder


def test_weights_are_the_exact_ones_by_every_way_and_near_them_by_16_bits(dataset: Path, tmp_path: Path) -> None:
    by_horovod = weights_of_run(_train(dataset, tmp_path / "horovod"))
    flat, levels = (_train(dataset, tmp_path / name, allreduce=name) for name in ("tree", "two_level"))
    assert largest_difference(weights_of_run(flat), by_horovod) < 1e-10
    assert largest_difference(weights_of_run(levels), by_horovod) < 1e-10
    assert {record["reduction"].split(",")[0] for record in records_in(flat, "start")} == {"3 ranks by sockets"}
    assert {record["reduction"].split(",")[0] for record in records_in(levels, "start")} == {"shared memory"}
    rounded = _train(dataset, tmp_path / "bf16", precision="float32", allreduce="auto", wire="bf16")
    assert 1e-6 < largest_difference(weights_of_run(rounded), {
        name: tensor.float() for name, tensor in by_horovod.items()}) < 1e-2
    assert [audit(str(folder / "run")).wire for folder in (levels, rounded)] == ["exact", "bf16"]
    said = "wire bf16: each row counts once, but what hosts sent each other was rounded"
    assert [said in audit_text(audit(str(folder / "run"))) for folder in (levels, rounded)] == [False, True]
    assert {record["reduction"].rpartition("; ")[2] for record in records_in(rounded, "start")} == {"bf16 with error feedback, not exact"}
    sent = [records_in(folder)[-1]["sent_bytes"] for folder in (levels, rounded)]
    assert sent[1] == pytest.approx(sent[0] / 4, rel=0.01), "half of float32's, a quarter of float64's"
