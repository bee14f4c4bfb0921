"""``sparkring train`` on two hosts of two ranks, each with a network, a name and a shared memory of its own.

Weights equal those of one rank, which equal a plain loop of torch (tests/parallel/test_exact_epoch.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.datasets import write_dataset
from harness.hosts import why_no_hosts
from harness.ranks import run_on_ranks
from sparkring.conf.schema import Config
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.train_rank import train_rank
from sparkring.spark_jobs.stored.audit import audit
from tests.support.host_cluster import HostCluster, host_cluster, write_config
from tests.support.training import events_of, largest_difference, weights_of_run

REASON = why_no_hosts()
pytestmark = [pytest.mark.skipif(REASON is not None, reason=REASON or ""), pytest.mark.timeout(600)]

FILES = ([600, 600], [300], [501])
HIDDEN = (512, 256)
STEPS = 21
LANES = 24
TRAIN: dict[str, Any] = {"num_ranks": 4, "epochs": 1, "batch_rows": 100, "precision": "float64", "lanes": LANES,
                         "optimizer": {"schedule": "constant"}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostCluster]:
    with host_cluster(tmp_path_factory.mktemp("hosts"), workers=("alpha", "beta")) as running:
        yield running


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with the dataset, and the run of one rank that no Spark started."""
    workspace = tmp_path_factory.mktemp("alone")
    dataset = write_dataset(workspace / "dataset", FILES)
    _, config = write_config(workspace, model={"hidden": HIDDEN}, train={**TRAIN, "num_ranks": 1})
    job = TrainJob(config=config, dataset_url=dataset.url, dataset_version=1, run_url=config.run, generation=0, lanes=LANES)
    run_on_ranks(1, train_rank, job.model_dump(mode="json"))
    return workspace


def _trained(cluster: HostCluster, workspace: Path, alone: Path, **train: Any) -> Config:
    """Train on the cluster; the weights must be those of one rank."""
    path, config = write_config(workspace, dataset_url=str(alone / "dataset"), model={"hidden": HIDDEN}, train={**TRAIN, **train})
    cluster.run("train", path)
    assert largest_difference(weights_of_run(workspace), weights_of_run(alone)) < 1e-10
    assert audit(config.run).finished
    return config


def _gradient_bytes(alone: Path) -> int:
    """Of a step, in float64."""
    return sum(8 * tensor.numel() for tensor in weights_of_run(alone).values())


def _sent(cluster: HostCluster) -> dict[str, int]:
    return {name: host.sent_bytes for name, host in cluster.workers.items()}


def test_gradients_of_two_hosts_meet_in_the_ring_of_their_leaders_and_the_weights_are_those_of_one_rank(
        cluster: HostCluster, alone: Path, tmp_path: Path) -> None:
    before = _sent(cluster)
    config = _trained(cluster, tmp_path, alone)
    starts = sorted(events_of(config, "start"), key=lambda record: record["rank"])
    assert [record["rank"] for record in starts] == [0, 1, 2, 3]
    assert starts[0]["host"] == starts[1]["host"] != starts[2]["host"] == starts[3]["host"]
    assert {record["host"] for record in starts} == {"alpha", "beta"}
    assert {record["reduction"] for record in starts} == {"shared memory, ring of 2 hosts"}
    gradients = STEPS * _gradient_bytes(alone)
    for name, sent in _sent(cluster).items():
        share = (sent - before[name]) / gradients
        assert 1.0 < share < 1.3, f"{name} sent {share:.2f} times the gradients: in a ring of two leaders each sends them once"
