"""``sparkring train`` on two and on three hosts of two ranks, each with a network, a name and a shared memory of its own.

Weights equal those of one rank, which equal a plain loop of torch (tests/parallel/test_exact_epoch.py). Nightly: layouts across hosts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.datasets import write_dataset
from harness.hosts import DECOY, why_no_hosts
from harness.ranks import run_on_ranks
from sparkring.conf.schema import Config
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.parallel.allreduce.costs import ways as ways_of
from sparkring.pipelines.parallel.allreduce.measured_costs import PASSES, REPETITIONS
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.train_rank import train_rank
from sparkring.spark_jobs.stored.audit import audit
from tests.support.host_cluster import HostCluster, host_cluster, write_config
from tests.support.token_dataset import write_token_dataset
from tests.support.training import events_of, largest_difference, weights_of_run

REASON = why_no_hosts()
pytestmark = [pytest.mark.skipif(REASON is not None, reason=REASON or ""), pytest.mark.timeout(600)]

FILES = ([600, 600], [300], [501])
TABLE: dict[str, Any] = {"hidden": (512, 256)}
WIDE_TABLE: dict[str, Any] = {"hidden": (1024, 512)}
"""Its gradients are so large that Horovod's own messages, which grow with the seconds of a run, are few beside them."""
DECODER: dict[str, Any] = {"kind": "text", "width": 12, "layers": 2, "heads": 6}
"""A network for tables has nothing to deal to shards; of a decoder each of six ranks gets a head."""
WIDE_DECODER = DECODER | {"width": 96}
"""Hundreds of milliseconds of computing a step, against two megabytes to sum: any other layout than one of all ranks is slower. The network
for tables computes a few milliseconds, and the planner may rightly leave it on one host."""
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
    write_dataset(workspace / "dataset", FILES)
    return _trained_alone(workspace, TABLE)


@pytest.fixture(scope="module")
def decoder_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of a decoder and texts."""
    workspace = tmp_path_factory.mktemp("decoder")
    write_token_dataset(workspace / "dataset", (70, 30, 45, 52))
    return _trained_alone(workspace, DECODER)


def _trained_alone(workspace: Path, model: dict[str, Any]) -> Path:
    _, config = write_config(workspace, model=model, train={**TRAIN, "num_ranks": 1})
    job = TrainJob(config=config, dataset_url=Dataset(config.dataset).url, dataset_version=1, run_url=config.run_url, generation=0,
                   lanes=LANES)
    run_on_ranks(1, train_rank, job.model_dump(mode="json"))
    return workspace


def _trained(cluster: HostCluster, workspace: Path, alone: Path, *, model: dict[str, Any] = TABLE, **train: Any) -> Config:
    """Train on the cluster; the weights must be those of one rank."""
    path, config = write_config(workspace, dataset_url=str(alone / "dataset"), model=model, train={**TRAIN, **train})
    cluster.run("train", path)
    assert largest_difference(weights_of_run(workspace), weights_of_run(alone)) < 1e-10
    assert audit(config.run_url).finished
    return config


def _gradient_bytes(workspace: Path) -> int:
    """Of a step of its run, in float64."""
    return sum(8 * tensor.numel() for tensor in weights_of_run(workspace).values())


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


@pytest.mark.nightly
def test_gradients_of_two_hosts_travel_by_connections_of_their_own_and_the_weights_are_those_of_one_rank(
        cluster: HostCluster, alone: Path, tmp_path: Path) -> None:
    before = _sent(cluster)
    config = _trained(cluster, tmp_path, alone, ring={"allreduce": "auto"})
    ways = {record["reduction"] for record in events_of(config, "start")}
    assert len(ways) == 1, "all ranks say the same"
    assert ways.pop().startswith("shared memory, 2 ranks by sockets, buffers: ")
    gradients, num_ways = STEPS * _gradient_bytes(alone), len(ways_of("auto", (0, 1), rounds_once=False))
    timed = PASSES * num_ways * sum((1 + series.rounds) * series.in_a_row * size for size, series in REPETITIONS.items())
    shares = [(sent - before[name] - timed) / gradients for name, sent in _sent(cluster).items()]
    assert all(1.0 < share < 1.4 for share in shares), f"once each, and as timed: {shares}"


@pytest.mark.nightly
def test_control_without_shared_memory_all_ranks_ring_and_more_bytes_leave_a_host(
        cluster: HostCluster, alone: Path, tmp_path: Path) -> None:
    before = _sent(cluster)
    config = _trained(cluster, tmp_path, alone, ring={"shared_memory": False})
    assert {record["reduction"] for record in events_of(config, "start")} == {"ring"}
    gradients = STEPS * _gradient_bytes(alone)
    assert all((sent - before[name]) / gradients > 1.4 for name, sent in _sent(cluster).items()), "in a ring of four, 2 * 3/4 of them"


@pytest.mark.nightly
@pytest.mark.parametrize(("layout", "workers"), [
    pytest.param({"num_ranks": 4, "parallel": {"replicas": [2, 2], "micro_batches": 4, "transport": "horovod"}},
                 [[0, 0], [0, 1], [1, 0], [1, 1]], id="a stage a host, messages by Horovod"),
    pytest.param({"num_ranks": 4, "parallel": {"replicas": [2, 2], "micro_batches": 4, "transport": "sidecar"}},
                 [[0, 0], [0, 1], [1, 0], [1, 1]], id="a stage a host, messages by sockets"),
    pytest.param({"num_ranks": 3, "parallel": {"replicas": [1, 2], "micro_batches": 4}}, [[0, 0], [1, 0], [1, 1]],
                 id="a stage whose replicas are on two hosts"),
    pytest.param({"num_ranks": 4, "parallel": {"auto": True, "replicas": [2, 2]}}, [[0, 0], [0, 1], [1, 0], [1, 1]],
                 id="as the planner says, in a stage a host")])
def test_layouts_across_hosts_train_the_weights_of_one_rank(
        cluster: HostCluster, alone: Path, tmp_path: Path, layout: dict[str, Any], workers: list[list[int]]) -> None:
    config = _trained(cluster, tmp_path, alone, **layout)
    assert {record["host"] for record in events_of(config, "start")} == {"alpha", "beta"}
    assert sorted(record["worker"] for record in events_of(config, "timeline")) == workers


@pytest.mark.nightly
def test_the_planner_spreads_a_network_that_computes_much_over_the_hosts_and_the_weights_are_those_of_one_rank(
        cluster: HostCluster, tmp_path: Path) -> None:
    workspace = tmp_path / "alone"
    write_token_dataset(workspace / "dataset", (70, 30, 45, 52))
    alone = _trained_alone(workspace, WIDE_DECODER)
    config = _trained(cluster, tmp_path / "auto", alone, model=WIDE_DECODER, parallel={"auto": True})
    assert {record["host"] for record in events_of(config, "start")} == {"alpha", "beta"}


@pytest.mark.nightly
@pytest.mark.parametrize("servers", ["peers", 1])
def test_servers_and_workers_on_two_hosts_train_the_weights_of_one_rank_one_step_at_a_time(
        cluster: HostCluster, alone: Path, tmp_path: Path, servers: str | int) -> None:
    config = _trained(cluster, tmp_path, alone, strategy={"kind": "stale_sync", "bound": 0, "servers": servers})
    took = {record["rank"] for record in events_of(config, "step")}
    assert took >= {0, 2}, "ranks of both hosts took steps"


@pytest.mark.nightly
def test_local_models_meet_between_hosts_less_often_and_send_less(cluster: HostCluster, alone: Path, tmp_path: Path) -> None:
    before = _sent(cluster)
    path, config = write_config(tmp_path, dataset_url=str(alone / "dataset"), model=WIDE_TABLE, train={
        **TRAIN, "strategy": {"kind": "local_sgd", "every_steps": 7}, "optimizer": {"name": "sgd", "lr": 0.01}})
    cluster.run("train", path)
    assert audit(config.run_url).strategy == "local_sgd"
    gradients = STEPS * _gradient_bytes(tmp_path)
    for name, sent in _sent(cluster).items():
        share = (sent - before[name]) / gradients
        assert share < 0.3, f"{name} sent {share:.2f} times the gradients of 21 steps: more than three exchanges and the first weights"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostCluster]:
    with host_cluster(tmp_path_factory.mktemp("three"), workers=("alpha", "beta", "gamma")) as running:
        yield running


@pytest.mark.nightly
@pytest.mark.parametrize("parallel", [
    pytest.param({}, id="plain"),
    pytest.param({"replicas": [2, 2, 2], "micro_batches": 4}, id="a stage a host, messages by sockets"),
    pytest.param({"replicas": [2, 2, 2], "micro_batches": 4, "transport": "horovod"}, id="a stage a host, messages by Horovod")])
def test_three_hosts_of_two_ranks_train_the_weights_of_one_rank(
        three: HostCluster, alone: Path, tmp_path: Path, parallel: dict[str, Any]) -> None:
    starts = events_of(_trained(three, tmp_path, alone, num_ranks=6, parallel=parallel), "start")
    assert {record["host"] for record in starts} == {"alpha", "beta", "gamma"}
    if not parallel:
        assert {record["reduction"] for record in starts} == {"shared memory, ring of 3 hosts"}


@pytest.mark.nightly
@pytest.mark.parametrize(("hosts", "num_ranks"), [("cluster", 4), ("three", 6)])
def test_layers_in_shards_over_all_hosts_train_the_weights_of_one_rank(
        request: pytest.FixtureRequest, decoder_alone: Path, tmp_path: Path, hosts: str, num_ranks: int) -> None:
    made: HostCluster = request.getfixturevalue(hosts)
    config = _trained(made, tmp_path, decoder_alone, model=DECODER, num_ranks=num_ranks, parallel={"shards": num_ranks})
    assert {record["host"] for record in events_of(config, "start")} == set(made.workers)


@pytest.mark.nightly
def test_a_job_on_two_hosts_under_faults_ends_as_without(cluster: HostCluster, alone: Path, tmp_path: Path) -> None:
    path, config = write_config(tmp_path, dataset_url=str(alone / "dataset"), model={"hidden": (16,)}, train={
        **TRAIN, "epochs": 20, "checkpoint_steps": 10})
    cluster.run("chaos", path, "--kills", "2", "--seed", "7", within_s=500)
    (document,) = Path(config.workspace).glob("chaos/runs/*-seed-7-*/chaos.json")
    outcome = json.loads(document.read_text(encoding="utf-8"))
    assert outcome["survived"]
    assert outcome["struck"] >= 1
    assert outcome["restarts"] >= 1


@pytest.mark.nightly
def test_an_interface_that_other_hosts_cannot_reach_is_refused_before_a_rank_starts(
        cluster: HostCluster, alone: Path, tmp_path: Path) -> None:
    path, config = write_config(tmp_path, dataset_url=str(alone / "dataset"), model={"hidden": (16,)}, train=TRAIN)
    for interface, address in ((DECOY, "172.17.0.1"), ("lo", "127.0.0.1")):
        with cluster.running("train", path, conf={"spark.executorEnv.HOROVOD_GLOO_IFACE": interface}) as command:
            assert command.wait(120) == 2
        assert f"at {address} on its interface {interface} (" in command.said
        assert "; set spark.executorEnv.HOROVOD_GLOO_IFACE to an interface by which hosts reach each other (" in command.said
        assert "10.77.0." in command.said
    assert not events_of(config, "start")
