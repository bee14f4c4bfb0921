"""Stale synchronous training on ranks: which promises of the exact strategy it keeps, and what its own bound promises."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.parameter_server.worker import Worker
from sparkring.pipelines.training.strategies.relaxed.stale_sync import StaleSyncStrategy
from sparkring.pipelines.training.train_rank import train_rank
from sparkring.spark_jobs.stored.audit import audit
from tests.support import seams
from tests.support.training import largest_difference, records_in, train_config, weights_of_run

ROWS, BATCH, STEPS, EPOCHS, LANES = [700, 333], 50, 21, 2, 25
SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "schedule": "constant"}

pytestmark = pytest.mark.parallel


def _job(dataset: Path, folder: Path, *, generation: int = 0, **settings: Any) -> dict[str, Any]:
    config = train_config(folder, model={"hidden": (8,)}, train={
        "epochs": EPOCHS, "batch_rows": BATCH, "precision": "float64", "lanes": LANES, "record_rows": True, "seed": 5, "optimizer": SGD,
        **settings})
    return TrainJob(config=config, dataset_url=Dataset(str(dataset)).url, dataset_version=1, run_url=str(folder / "run"),
                    generation=generation, lanes=LANES).model_dump(mode="json")


def _train(dataset: Path, folder: Path, *, ranks: int, hosts: tuple[int, ...] = (), **settings: Any) -> dict[str, Any]:
    summary: dict[str, Any] = run_on_ranks(ranks, train_rank, _job(dataset, folder, num_ranks=ranks, **settings), hosts=hosts)[0]
    return summary


def _slow_rank_1(context: RankContext, job: dict[str, Any]) -> list[set[str]]:
    """Train; each step of rank 1 takes longer by several steps of the others. What its optimizer keeps of each parameter at the start."""
    learn, segment, kept = StaleSyncStrategy.learn, StaleSyncStrategy.segment, list[set[str]]()

    def slow(self: StaleSyncStrategy, *args: Any) -> Any:
        time.sleep(0.02 if context.rank == 1 else 0.001)  # what a slow machine does; nothing is waited for
        return learn(self, *args)

    def begun(self: StaleSyncStrategy, *args: Any, **named: Any) -> Any:
        if not kept:
            kept.extend(set(self.optimizer.state[one]) for group in self.optimizer.param_groups for one in group["params"])
        return segment(self, *args, **named)

    seams.replace(seams.STALE_SYNC_LEARN, slow)
    seams.replace(seams.STALE_SYNC_SEGMENT, begun)
    train_rank(context, job)
    return kept


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows") / "dataset"
    write_dataset(folder, (ROWS,), validation_rows=100)
    return folder


@pytest.fixture(scope="module")
def exact(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exact")
    _train(dataset, folder, ranks=1)
    return folder


def test_with_one_worker_it_is_synchronous_sgd_bit_for_bit_with_peers_and_with_servers_apart(
        dataset: Path, exact: Path, tmp_path: Path) -> None:
    for name, ranks, servers in (("peer", 1, "peers"), ("apart", 3, 2)):
        _train(dataset, tmp_path / name, ranks=ranks, strategy={"kind": "stale_sync", "bound": 0, "servers": servers})
        wanted, found = weights_of_run(exact), weights_of_run(tmp_path / name)
        assert all(torch.equal(found[key], tensor) for key, tensor in wanted.items())


def test_with_bound_0_three_workers_do_one_step_at_a_time_with_the_exact_result(dataset: Path, exact: Path, tmp_path: Path) -> None:
    _train(dataset, tmp_path, ranks=3, hosts=(0, 0, 1), strategy={"kind": "stale_sync", "bound": 0})
    assert largest_difference(weights_of_run(tmp_path), weights_of_run(exact)) < 1e-10
    assert len({record["rank"] for record in records_in(tmp_path)}) > 1, "the steps are spread"


@pytest.fixture(scope="module")
def slow_ranks(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[set[str]]]]:
    """A run with a bound that a slow rank reaches, and what its ranks say."""
    folder = tmp_path_factory.mktemp("slow")
    job = _job(dataset, folder, num_ranks=3, strategy={"kind": "stale_sync", "bound": 5},
               optimizer={"name": "adagrad", "lr": 0.01, "schedule": "constant"})
    return folder, run_on_ranks(3, _slow_rank_1, job)


@pytest.fixture(scope="module")
def slow(slow_ranks: tuple[Path, list[list[set[str]]]]) -> Path:
    return slow_ranks[0]


def test_a_fresh_run_leaves_every_server_the_state_that_its_optimizer_was_made_with(
        slow_ranks: tuple[Path, list[list[set[str]]]]) -> None:
    """Before 2.9, torch makes that of adagrad when it makes the optimizer, and never again."""
    assert [{frozenset(made) for made in rank} for rank in slow_ranks[1]] == [{frozenset({"step", "sum"})}] * 3


def test_a_slow_rank_takes_fewer_steps_and_no_update_is_staler_than_the_bound(slow: Path) -> None:
    steps = Counter(record["rank"] for record in records_in(slow))
    assert steps[1] < min(steps[0], steps[2])
    stalenesses = [record["staleness"] for record in records_in(slow)]
    assert 1 < max(stalenesses) <= 5
    counted = Counter[str]()
    for record in records_in(slow, "quiet"):
        counted.update(record["staleness"])
    assert counted == Counter(map(str, stalenesses))


def test_every_row_comes_once_an_epoch_in_the_steps_of_the_exact_strategy_and_the_audit_proves_it(slow: Path, exact: Path) -> None:
    def rows(folder: Path) -> dict[tuple[int, int], list[int]]:
        return {(record["epoch"], record["step"]): sorted(record["row_ids"]) for record in records_in(folder)}

    assert rows(slow) == rows(exact)
    assert len(records_in(slow)) == EPOCHS * STEPS, "no step was done twice"
    proved = audit(str(slow / "run"))
    assert (proved.epochs, proved.strategy, proved.rows) == (EPOCHS, "stale_sync", sum(ROWS))


def test_no_update_is_lost_or_applied_twice_also_across_a_killed_generation(dataset: Path, tmp_path: Path) -> None:
    """With sgd without momentum the weights are in the end what they were, less the sum of all that was pushed."""
    settings: dict[str, Any] = {"optimizer": {"name": "sgd", "lr": 0.01, "schedule": "constant"}, "num_ranks": 3, "checkpoint_steps": 6,
                "strategy": {"kind": "stale_sync", "bound": 4}, "keep_checkpoints": 99}
    with pytest.raises(AssertionError, match="rank"):
        run_on_ranks(3, _noting_pushes, _job(dataset, tmp_path, **settings), True)
    reached = Checkpoints(str(tmp_path / "run")).latest()[0].document.position  # type: ignore[union-attr]
    assert reached.steps_done < EPOCHS * STEPS, "it was killed on its way"
    job = _job(dataset, tmp_path, generation=1, **settings)
    pushed = run_on_ranks(3, _noting_pushes, job, False)
    numbers = Counter(number for rank in pushed for number in rank["numbers"])
    wanted = [*range(reached.step, STEPS), *(number for _ in range(reached.epoch + 1, EPOCHS) for number in range(STEPS))]
    assert numbers == Counter(wanted), "each update once; those of an epoch count from 0"
    moved = {name: sum(rank["sums"][name] for rank in pushed) for name in pushed[0]["sums"]}
    start, end = pushed[0]["start"], pushed[0]["end"]
    for name, total in moved.items():
        assert end[name] == pytest.approx(start[name] - total, rel=1e-9, abs=1e-12)


def _noting_pushes(context: RankContext, job: dict[str, Any], dies: bool) -> dict[str, Any]:
    """Train, adding up what this rank pushes; or die once there is a checkpoint."""
    push, segment = Worker.push, StaleSyncStrategy.segment
    start, noted, held = dict[str, float](), dict[str, Any](numbers=[], sums={}), list[StaleSyncStrategy]()

    def pushed(self: Worker, number: int, *, rate: float, updates: bool) -> None:
        if dies and Checkpoints(job["run_url"]).numbers():
            os._exit(9)
        for name, parameter in held[0].model.named_parameters():
            noted["sums"][name] = noted["sums"].get(name, 0.0) + rate * float(parameter.grad.sum())  # type: ignore[union-attr]
        noted["numbers"].append(number)
        push(self, number, rate=rate, updates=updates)

    def begun(self: StaleSyncStrategy, *args: Any, **named: Any) -> Any:
        if not held:
            held.append(self)
            start.update({name: float(parameter.detach().sum()) for name, parameter in self.model.named_parameters()})
        return segment(self, *args, **named)

    seams.replace(seams.WORKER_PUSH, pushed)
    seams.replace(seams.STALE_SYNC_SEGMENT, begun)
    train_rank(context, job)
    return noted | {"start": start, "end": {name: float(parameter.detach().sum()) for name, parameter in held[0].model.named_parameters()}}


def test_a_run_resumes_on_another_number_of_ranks_from_a_quiet_point(dataset: Path, tmp_path: Path) -> None:
    strategy = {"kind": "stale_sync", "bound": 3}
    with pytest.raises(AssertionError, match="rank"):
        run_on_ranks(3, _noting_pushes, _job(dataset, tmp_path, num_ranks=3, strategy=strategy, checkpoint_steps=4), True)
    summary = _train(dataset, tmp_path, ranks=2, generation=1, strategy=strategy | {"servers": 1}, checkpoint_steps=4)
    assert 0 < summary["resumed_at"] < summary["steps"] == EPOCHS * STEPS
    proved = audit(str(tmp_path / "run"))
    assert [part.generation for part in proved.parts] == [0, 1]
    assert (proved.epochs, proved.rows) == (EPOCHS, sum(ROWS))


def _asked_at_once(context: RankContext, job: dict[str, Any], rank: int) -> dict[str, Any] | None:
    """Train; one rank is asked to stop before the first step."""
    segment = StaleSyncStrategy.segment

    def asked(self: StaleSyncStrategy, *args: Any, **named: Any) -> Any:
        if context.rank == rank:
            os.kill(os.getpid(), signal.SIGTERM)
        return segment(self, *args, **named)

    seams.replace(seams.STALE_SYNC_SEGMENT, asked)
    return train_rank(context, job)


@pytest.mark.parametrize("asked", [pytest.param(0, id="a rank that computes"), pytest.param(1, id="one that only serves")])
def test_a_run_that_is_stopped_right_after_an_epoch_still_knows_how_good_it_was(dataset: Path, tmp_path: Path, asked: int) -> None:
    strategy = {"kind": "stale_sync", "bound": 0, "servers": 1}
    _train(dataset, tmp_path, ranks=2, epochs=1, strategy=strategy)
    before = Checkpoints(str(tmp_path / "run")).best()
    job = _job(dataset, tmp_path, num_ranks=2, generation=1, strategy=strategy)
    summary: dict[str, Any] = run_on_ranks(2, _asked_at_once, job, asked)[0]
    assert summary["interrupted"]
    assert STEPS < summary["steps"] < 2 * STEPS, "within the epoch, and not before its first step"
    after = Checkpoints(str(tmp_path / "run")).best()
    assert before is not None
    assert after is not None
    assert (after.document.position, after.document.validation) == (before.document.position, before.document.validation)


def test_a_gradient_that_is_not_finite_is_not_pushed_and_stops_all_ranks_at_the_quiet_point(tmp_path: Path) -> None:
    write_dataset(tmp_path / "dataset", (ROWS,), nan_row=17)
    strategy = {"kind": "stale_sync", "bound": 3}
    _train(tmp_path / "dataset", tmp_path / "skipped", ranks=2, epochs=1, strategy=strategy, on_nonfinite="skip")
    (spoiled,) = [record["step"] for record in records_in(tmp_path / "skipped") if 17 in record["row_ids"]]
    (warning,) = [record["text"] for record in records_in(tmp_path / "skipped", "warning")]
    assert warning.startswith(f"1 of the ranks' steps since step {spoiled} of epoch 0 had a loss or gradient that is not finite")
    assert all(tensor.isfinite().all() for tensor in weights_of_run(tmp_path / "skipped").values())
    with pytest.raises(AssertionError, match=f"NotFinite: 1 of the ranks' steps since step {spoiled} of epoch 0"):
        _train(tmp_path / "dataset", tmp_path / "stopped", ranks=2, epochs=1, strategy=strategy)
