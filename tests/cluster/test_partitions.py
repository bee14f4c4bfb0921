"""A run whose hosts lose each other: it goes on, or ends in time and names host and ranks; and no two rings ever write one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.datasets import write_dataset
from harness.hosts import Host, why_no_hosts
from harness.ranks import run_on_ranks
from sparkring.conf.schema import Config
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.train_rank import train_rank
from sparkring.spark_jobs.stored.audit import audit
from tests.support.host_cluster import HostCluster, Running, host_cluster, write_config
from tests.support.training import await_condition, events_of, largest_difference, weights_of_run

REASON = why_no_hosts()
pytestmark = [pytest.mark.skipif(REASON is not None, reason=REASON or ""), pytest.mark.nightly, pytest.mark.timeout(1500)]

FILES = ([600, 600], [300], [501])
LANES = 24
EPOCHS = 30
STEPS_AN_EPOCH = 21
CUT_S = 5.0
FULL_MBIT, SLOW_MBIT = 100.0, 1.0
HIDDEN = (64, 16)
"""12 KB of gradients in float64: at ``SLOW_MBIT`` a step takes a tenth of a second."""
DEADLINE_S = 8.0
"""``train.ring.deadline_s`` of the runs here."""
END_S = 300.0
"""Seconds for a command to end once hosts have lost each other: the deadline, and what the tasks and Spark take on a busy machine."""
QUICK = {"spark.network.timeout": "30s", "spark.network.timeoutInterval": "4s", "spark.executor.heartbeatInterval": "4s"}
"""Spark gives up an executor in seconds instead of two minutes."""
PATIENT = {"spark.network.timeout": "900s"}
"""Executors that hear nothing of their driver go on for so long."""
TRAIN: dict[str, Any] = {
    "num_ranks": 4, "epochs": EPOCHS, "batch_rows": 100, "precision": "float64", "lanes": LANES, "optimizer": {"schedule": "constant"},
    "checkpoint_steps": 10, "ring": {"deadline_s": DEADLINE_S, "start_timeout_s": 60.0}}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with the dataset, and the run of one rank."""
    workspace = tmp_path_factory.mktemp("alone")
    dataset = write_dataset(workspace / "dataset", FILES)
    _, config = write_config(workspace, model={"hidden": HIDDEN}, train={**TRAIN, "num_ranks": 1})
    job = TrainJob(config=config, dataset_url=dataset.url, dataset_version=1, run_url=config.run_url, generation=0, lanes=LANES)
    run_on_ranks(1, train_rank, job.model_dump(mode="json"))
    return workspace


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostCluster]:
    with host_cluster(tmp_path_factory.mktemp("hosts"), workers=("alpha", "beta")) as running:
        yield running


def _config(workspace: Path, alone: Path, **train: Any) -> tuple[str, Config]:
    return write_config(workspace, dataset_url=str(alone / "dataset"), model={"hidden": HIDDEN}, train={**TRAIN, **train})


def _steps(config: Config, *, resumed: bool = False) -> int:
    """Number of steps of generation 0; or of those after it, which are several if a ring could not form within ``DEADLINE_S``."""
    return sum(record["rank"] == 0 and (record["generation"] > 0) == resumed for record in events_of(config, "step"))


def _await_steps(command: Running, config: Config, more: int, *, resumed: bool = False) -> None:
    wanted = _steps(config, resumed=resumed) + more

    def done() -> bool:
        assert command.process.poll() is None, f"the command ended:\n{command.said[-4000:]}"
        return _steps(config, resumed=resumed) >= wanted

    await_condition(done, f"step {wanted} {'after' if resumed else 'of'} generation 0", within_s=END_S)


def _host_of(cluster: HostCluster, config: Config, rank: int) -> Host:
    return cluster.workers[next(record["host"] for record in events_of(config, "start") if record["rank"] == rank)]


def _require_weights_of_one_rank(workspace: Path, alone: Path, config: Config) -> None:
    assert largest_difference(weights_of_run(workspace), weights_of_run(alone)) < 1e-10
    assert audit(config.run_url).finished


def _generations(config: Config) -> dict[int, int]:
    """Number of ranks of each generation."""
    return {record["generation"]: record["size"] for record in events_of(config, "start")}


def test_a_link_that_is_cut_for_five_seconds_costs_time_and_nothing_else(cluster: HostCluster, alone: Path, tmp_path: Path) -> None:
    path, config = _config(tmp_path, alone, ring={**TRAIN["ring"], "deadline_s": 60.0})
    with cluster.running("train", path) as command:
        _await_steps(command, config, 10)
        link = _host_of(cluster, config, 2).link
        link.cut()
        time.sleep(1.0)  # what was under way arrives
        before = _steps(config)
        time.sleep(CUT_S - 1.0)
        assert _steps(config) == before < EPOCHS * STEPS_AN_EPOCH
        link.heal()
        assert command.wait(END_S) == 0
    assert _generations(config) == {0: 4}
    _require_weights_of_one_rank(tmp_path, alone, config)


def test_a_link_whose_rate_falls_to_a_hundredth_slows_a_run_down_and_nothing_else(
        cluster: HostCluster, alone: Path, tmp_path: Path) -> None:
    path, config = _config(tmp_path, alone)
    links, slow = [host.link for host in cluster.workers.values()], list(cluster.workers.values())[1]
    try:
        for link in links:
            link.limit(FULL_MBIT)
        with cluster.running("train", path) as command:
            _await_steps(command, config, 10)
            links[1].limit(SLOW_MBIT)
            began, before = time.monotonic(), slow.sent_bytes
            assert command.wait(END_S) == 0
            assert slow.sent_bytes - before < 1.3 * SLOW_MBIT * 1e6 / 8 * (time.monotonic() - began), "the link was not slow"
    finally:
        for link in links:
            link.clear()
    assert _generations(config) == {0: 4}
    _require_weights_of_one_rank(tmp_path, alone, config)


CUTS: dict[str, Callable[[Host], None]] = {
    "no packet passes": lambda host: host.link.cut(), "none to the host": lambda host: host.link.cut_incoming(),
    "none from the host": lambda host: host.link.cut_outgoing()}


@pytest.mark.parametrize("rank", [pytest.param(2, id="of another host than rank 0's"), pytest.param(0, id="of rank 0's host")])
@pytest.mark.parametrize("cut", CUTS)
def test_a_link_that_is_cut_for_good_ends_a_run_in_time_with_an_error_that_names_host_and_rank(
        cluster: HostCluster, alone: Path, tmp_path: Path, cut: str, rank: int) -> None:
    path, config = _config(tmp_path, alone, recovery={"restarts": 0})
    with cluster.running("train", path) as command:
        _await_steps(command, config, 20)
        host = _host_of(cluster, config, rank)
        CUTS[cut](host)
        try:
            assert command.wait(END_S) == 2
        finally:
            host.link.clear()
            host.link.heal()
    _require_named(command, config, host, rank)
    path, _ = _config(tmp_path, alone, num_ranks=2)
    cluster.run("train", path)
    sizes = _generations(config)
    assert sizes[max(sizes)] == 2
    _require_weights_of_one_rank(tmp_path, alone, config)


def _require_named(command: Running, config: Config, host: Host, rank: int) -> None:
    named = "rank 0 on" if rank == 0 else "rank 2 and rank 3 on"
    assert f"{named} {host.name} do" in command.said.replace("does", "do"), command.said[-2000:]
    assert "not answer" in command.said
    assert f"see that {host.name} can be reached over the network" in command.said
    await_condition(lambda: not host.ranks(), f"the end of the ranks on {host.name}", within_s=END_S)


def test_a_host_that_vanishes_is_named_and_the_run_goes_on_without_it(alone: Path, tmp_path: Path) -> None:
    path, config = _config(tmp_path / "run", alone)
    with host_cluster(tmp_path, workers=("alpha", "beta")) as cluster, cluster.running("train", path, conf=QUICK) as command:
        _await_steps(command, config, 20)
        host = _host_of(cluster, config, 2)
        host.vanish()
        assert command.wait(2 * END_S) == 0
    assert host.name in command.said
    sizes = _generations(config)
    assert sizes[0] == 4
    assert sizes[max(sizes)] == 2
    _require_weights_of_one_rank(tmp_path / "run", alone, config)


def test_a_link_that_heals_late_brings_no_rank_of_the_ring_before_back(alone: Path, tmp_path: Path) -> None:
    path, config = _config(tmp_path / "run", alone)
    with host_cluster(tmp_path, workers=("alpha", "beta")) as cluster, cluster.running("train", path, conf=QUICK) as command:
        _await_steps(command, config, 20)
        host = _host_of(cluster, config, 2)
        host.link.cut()
        await_condition(lambda: max(_generations(config)) > 0, "the next generation", within_s=END_S)
        host.link.heal()
        assert command.wait(2 * END_S) == 0
        await_condition(lambda: not host.ranks(), f"the end of the ranks on {host.name}", within_s=END_S)
    _require_one_writer(config)
    _require_weights_of_one_rank(tmp_path / "run", alone, config)


def test_a_ring_that_has_lost_its_driver_ends_once_another_driver_has_begun(alone: Path, tmp_path: Path) -> None:
    path, config = _config(tmp_path / "run", alone)
    with host_cluster(tmp_path, workers=("alpha", "beta"), drivers=("front", "office"), cores=4) as cluster:
        with cluster.running("train", path, cores=2, conf=PATIENT) as command:
            _await_steps(command, config, 20)
            for host in cluster.workers.values():
                host.link.limit(SLOW_MBIT / 4)  # so that the ring does not reach the end of the run without its driver
            cluster.drivers["front"].vanish()
        old = [rank for host in cluster.workers.values() for rank in host.ranks()]
        assert len(old) == 4, "the ring goes on without its driver"
        before = _steps(config)
        await_condition(lambda: _steps(config) > before, "a step of the ring without a driver")
        with cluster.running("train", path, on="office", cores=2) as command:
            _await_steps(command, config, 1, resumed=True)
            for host in cluster.workers.values():
                host.link.clear()
            assert command.wait(END_S) == 0, command.said[-3000:]
        psutil.wait_procs(old, timeout=END_S)
        assert not any(rank.is_running() for rank in old)
    assert len(_generations(config)) > 1
    refused = [record["text"] for record in events_of(config, "warning") if record["generation"] == 0]
    assert any("generation 0 is over" in text for text in refused), "the ring without a driver tried to write"
    _require_one_writer(config)
    _require_weights_of_one_rank(tmp_path / "run", alone, config)


def test_a_ring_whose_driver_is_cut_off_ends_and_another_goes_on_once_the_link_heals(alone: Path, tmp_path: Path) -> None:
    path, config = _config(tmp_path / "run", alone)
    with host_cluster(tmp_path, workers=("alpha", "beta")) as cluster, cluster.running("train", path, conf=QUICK) as command:
        _await_steps(command, config, 20)
        for host in cluster.workers.values():
            host.link.limit(SLOW_MBIT / 4)  # so that the ring does not reach the end of the run without its driver
        cluster.drivers["front"].link.cut()
        await_condition(lambda: not [rank for host in cluster.workers.values() for rank in host.ranks()], "the end of the ranks",
                        within_s=END_S)
        assert command.process.poll() is None, "the driver waits"
        for host in cluster.workers.values():
            host.link.clear()
        cluster.drivers["front"].link.heal()
        assert command.wait(END_S) == 0, command.said[-3000:]
    assert len(_generations(config)) > 1
    _require_one_writer(config)
    _require_weights_of_one_rank(tmp_path / "run", alone, config)


def test_a_command_whose_driver_is_cut_off_for_good_ends_in_time_and_names_the_hosts(alone: Path, tmp_path: Path) -> None:
    path, config = _config(tmp_path / "run", alone)
    with host_cluster(tmp_path, workers=("alpha", "beta")) as cluster:
        with cluster.running("train", path, conf=QUICK) as command:
            _await_steps(command, config, 20)
            for host in cluster.workers.values():
                host.link.limit(SLOW_MBIT / 4)  # as above
            cluster.drivers["front"].link.cut()
            assert command.wait(END_S) == 2, command.said[-3000:]
        assert "has heard from none of the 4 tasks on alpha and beta" in command.said
        assert "run the same command again, which resumes" in command.said
        for host in cluster.workers.values():
            host.link.clear()
        cluster.drivers["front"].link.heal()
        await_condition(lambda: not [rank for host in cluster.workers.values() for rank in host.ranks()], "the end of the ranks",
                        within_s=END_S)
        cluster.run("train", path, within_s=END_S)
    _require_one_writer(config)
    _require_weights_of_one_rank(tmp_path / "run", alone, config)


def _require_one_writer(config: Config) -> None:
    """Once a generation has taken a step, no earlier one commits a checkpoint."""
    began: dict[int, float] = {}
    for record in events_of(config, "step"):
        began[record["generation"]] = min(record["time"], began.get(record["generation"], record["time"]))
    late = [record for record in events_of(config, "checkpoint")
            if any(generation > record["generation"] and record["time"] > time_s for generation, time_s in began.items())]
    assert late == []
    assert sorted(began) == Checkpoints(config.run_url).generations()
