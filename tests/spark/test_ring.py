"""``run_ring`` on a local master: results, errors, slots, and that nothing is left running in any case."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import ring_functions
from tests.support.ring_driver import Driver, assert_no_process_left, driver, marks, ring_processes, shared_names, wait_until


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with driver(tmp_path_factory.mktemp("local"), {"master": "local[3]"}) as running:
        yield running


def test_results_come_back_by_rank_and_nothing_is_left(local: Driver, tmp_path: Path) -> None:
    ranks = local.ring(ring_functions.introduce, str(tmp_path), num_ranks=3, threads_per_rank=1).results
    assert [(told["rank"], told["horovod"], told["sum"]) for told in ranks] == [(rank, [rank, 3, rank], 33.0) for rank in range(3)]
    assert [(told["hosts"], told["device"], told["threads"], told["stdin"]) for told in ranks] == [([0, 0, 0], "cpu", 1, "")] * 3
    assert {address for told in ranks for address in told["listening"]} == {"127.0.0.1"}
    assert {told["nccl"] for told in ranks} == {"=lo"}  # "lo" would stand for every interface whose name begins like it
    assert "[rank 1] hello from 1" in local.log
    assert_no_process_left(ranks[0]["token"])


def test_an_exception_names_its_rank_and_brings_its_traceback(local: Driver) -> None:
    outcome = local.ring(ring_functions.raise_on_rank_1, num_ranks=2)
    assert outcome.error.startswith("RankFailed")
    assert outcome.attributes["rank"] == 1
    assert outcome.attributes["summary"] == "ValueError: the user's mistake"
    assert "in raise_on_rank_1" in outcome.attributes["rank_traceback"]


@pytest.mark.parametrize(("how", "words"), [("SIGKILL", "was killed by SIGKILL"), ("exit", "ended with exit code 3 and no result")])
def test_a_rank_that_dies_ends_the_ring_with_its_name_and_takes_its_children_along(
        local: Driver, tmp_path: Path, how: str, words: str) -> None:
    outcome = local.ring(ring_functions.die_on_rank_1, str(tmp_path), how, num_ranks=2)
    assert outcome.error.startswith("RankDied")
    assert outcome.attributes["rank"] == 1
    assert words in outcome.message
    assert outcome.message.endswith("my last words")
    assert_no_process_left(marks(tmp_path, num_ranks=2)[0]["token"])


def test_a_rank_that_never_joins_ends_the_ring_at_the_deadline(local: Driver) -> None:
    outcome = local.ring(ring_functions.never_join, num_ranks=2, deadline_s=2)
    assert outcome.error.startswith("DeadlinePassed")
    assert "rank 0 on " in outcome.message
    assert "waited longer than train.ring.deadline_s for rank 1" in outcome.message


@pytest.mark.parametrize("launcher", ["barrier", pytest.param("horovod.spark", marks=pytest.mark.nightly)])
def test_a_ring_of_which_every_rank_is_suspended_ends_with_one_of_their_names(local: Driver, tmp_path: Path, launcher: str) -> None:
    local.begin(ring_functions.sleep, str(tmp_path), num_ranks=2, deadline_s=3.0, launcher=launcher)
    told = marks(tmp_path, num_ranks=2)
    for mark in told:
        os.kill(mark["pid"], signal.SIGSTOP)
    outcome = local.outcome()
    assert outcome.error.startswith("DeadlinePassed")
    assert "was suspended (SIGSTOP) for longer than train.ring.deadline_s" in outcome.message
    assert outcome.attributes["host"]
    assert_no_process_left(told[0]["token"])


def test_a_result_that_json_cannot_hold_is_refused(local: Driver) -> None:
    outcome = local.ring(ring_functions.return_a_tensor, num_ranks=2)
    assert outcome.error.startswith("RankFailed")
    assert "rank 1 raised TypeError: the function returned a Tensor that JSON cannot hold" in outcome.message


def test_a_rank_that_returns_early_does_not_break_the_others_ring(local: Driver) -> None:
    assert local.ring(ring_functions.leave_early, num_ranks=3).results == [2.0, 2.0, -1.0]


def test_more_ranks_than_slots_are_refused(local: Driver) -> None:
    outcome = local.ring(ring_functions.raise_on_rank_1, num_ranks=4)
    assert outcome.error.startswith("NotEnoughSlots")
    assert outcome.attributes == {"wanted": 4, "slots": 3}


def test_slots_that_stay_taken_are_refused_after_the_start_timeout(local: Driver, tmp_path: Path) -> None:
    local.tell({"do": "occupy", "until": str(tmp_path / "free")})
    wait_until((tmp_path / "free.busy").exists, "the other job")
    outcome = local.ring(ring_functions.sleep, str(tmp_path), num_ranks=3, start_timeout_s=2)
    (tmp_path / "free").touch()
    assert outcome.error.startswith("NotEnoughSlots")
    assert local.ring(ring_functions.leave_early, num_ranks=3).results == [2.0, 2.0, -1.0]  # the slots are free again
    assert not list(tmp_path.glob("rank-*"))  # and the launch that was given up has not run


def test_cancelling_the_job_ends_ranks_that_never_finish(local: Driver, tmp_path: Path) -> None:
    local.begin(ring_functions.sleep, str(tmp_path), num_ranks=2)
    token = marks(tmp_path, num_ranks=2)[0]["token"]
    local.tell({"do": "cancel"})
    outcome = local.outcome()
    assert outcome.error.startswith("RingError")
    assert "cancelled" in outcome.message
    assert_no_process_left(token)


def test_ctrl_c_ends_the_ranks(local: Driver, tmp_path: Path) -> None:
    local.begin(ring_functions.sleep, str(tmp_path), num_ranks=2)
    token = marks(tmp_path, num_ranks=2)[0]["token"]
    local.send_signal(signal.SIGINT)
    assert local.outcome().error.startswith("KeyboardInterrupt")
    assert_no_process_left(token)


def test_a_python_worker_that_is_killed_ends_the_ring_and_the_function_is_not_run_again(local: Driver, tmp_path: Path) -> None:
    local.begin(ring_functions.sleep_while_opening, str(tmp_path), num_ranks=2)
    before = marks(tmp_path, num_ranks=2)
    assert len(shared_names(before[0]["token"])) == 4  # each rank's memory and socket: these are to go too
    servers = [psutil.Process(mark["parent"]) for mark in before]
    assert len(ring_processes(before[0]["token"])) == 4  # two ranks, each with a child: these are to go
    os.kill(before[1]["task"], signal.SIGKILL)
    outcome = local.outcome()
    assert outcome.error.startswith("RingError")
    assert "Python worker exited unexpectedly" in outcome.message
    assert_no_process_left(before[0]["token"])
    wait_until(lambda: not servers[1].is_running(), "the rank server of the task that was killed to end")
    assert marks(tmp_path, num_ranks=2) == before
    assert local.ring(ring_functions.communicate, num_ranks=2).results == [2.0, 2.0]
    assert shared_names(before[0]["token"]) == []  # the next ring on the host removed what no task was left to remove


def test_the_next_launch_forks_its_ranks_off_the_processes_that_the_last_one_left(local: Driver, tmp_path: Path) -> None:
    first, second = (local.ring(ring_functions.introduce, str(tmp_path), num_ranks=3).results for _ in range(2))
    assert {told["parent"] for told in first} == {told["parent"] for told in second}
    assert not {told["parent"] for told in first} & {told["task"] for told in first}
    fresh = local.ring(ring_functions.introduce, str(tmp_path), num_ranks=3, fork_ranks=False).results
    assert [told["parent"] for told in fresh] == [told["task"] for told in fresh]


def test_a_rank_server_that_is_killed_ends_the_ring_with_its_name_and_the_next_launch_has_another(local: Driver, tmp_path: Path) -> None:
    local.begin(ring_functions.sleep, str(tmp_path), num_ranks=2)
    mark = marks(tmp_path, num_ranks=2)[1]
    os.kill(mark["parent"], signal.SIGKILL)
    outcome = local.outcome()
    assert outcome.error.startswith("RankDied")
    assert outcome.attributes["rank"] == 1
    assert f"the rank server {mark['parent']}, off which this rank was forked, ended with exit code -9" in outcome.message
    assert_no_process_left(mark["token"])
    assert local.ring(ring_functions.leave_early, num_ranks=3).results == [2.0, 2.0, -1.0]


def test_upstream_s_launcher_gives_the_same_results(local: Driver, tmp_path: Path) -> None:
    outcome = local.ring(ring_functions.introduce, str(tmp_path), num_ranks=2, launcher="horovod.spark", deadline_s=40)
    assert outcome.message == ""
    assert [(told["rank"], told["hosts"], told["horovod"], told["sum"], told["threads"], told["nccl"]) for told in outcome.results] == [
        (rank, [0, 0], [rank, 2, rank], 21.0, 1, "=lo") for rank in range(2)]


@pytest.mark.nightly
def test_upstream_s_launcher_gives_the_same_errors(local: Driver, tmp_path: Path) -> None:
    failed = local.ring(ring_functions.raise_on_rank_1, num_ranks=2, launcher="horovod.spark")
    assert failed.error.startswith("RankFailed")
    assert (failed.attributes["rank"], failed.attributes["summary"]) == (1, "ValueError: the user's mistake")
    died = local.ring(ring_functions.die_on_rank_1, str(tmp_path), "SIGKILL", 0, num_ranks=2, launcher="horovod.spark")
    assert died.error.startswith("RankDied")
    assert (died.attributes["rank"], died.attributes["exit_code"]) == (1, -signal.SIGKILL)


@pytest.mark.nightly
def test_upstream_s_launcher_ends_the_ranks_that_wait_for_a_dead_one(local: Driver) -> None:
    # Rank 0 would wait for rank 1 as long as train.ring.deadline_s says, and upstream would wait for both: longer than this test does.
    outcome = local.ring(ring_functions.exit_before_joining, num_ranks=2, launcher="horovod.spark", deadline_s=600)
    assert outcome.error.startswith("RankDied")
    assert (outcome.attributes["rank"], outcome.attributes["exit_code"]) == (1, 3)


def test_a_driver_that_is_killed_leaves_no_rank(tmp_path: Path) -> None:
    with driver(tmp_path, {"master": "local[1]"}) as running:
        running.begin(ring_functions.sleep, str(tmp_path), num_ranks=1)
        token = marks(tmp_path, num_ranks=1)[0]["token"]
        running.send_signal(signal.SIGKILL)
        assert_no_process_left(token)


def test_executors_whose_python_lacks_the_packages_are_told_apart(tmp_path: Path) -> None:
    bare = str(Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}"))
    with driver(tmp_path, {"master": "local[1]"}, environment={"PYSPARK_PYTHON": bare}) as running:
        outcome = running.ring(ring_functions.leave_early, num_ranks=1)
    assert outcome.error.startswith("EnvironmentProblem")
    assert "the executors' Python cannot be used (No module named " in outcome.message


def test_a_horovod_that_was_built_for_another_torch_is_refused_before_a_rank_starts(tmp_path: Path) -> None:
    stand_in = tmp_path / "packages" / "horovod"  # found before the one that is installed
    stand_in.mkdir(parents=True)
    (stand_in / "__init__.py").touch()
    (stand_in / "metadata.json").write_text('{"pytorch": "2.0.1"}', encoding="utf-8")
    first = {"PYTHONPATH": os.pathsep.join(filter(None, [str(stand_in.parent), os.environ.get("PYTHONPATH")]))}
    with driver(tmp_path, {"master": "local[1]"}, environment=first) as running:
        outcome = running.ring(ring_functions.leave_early, num_ranks=1)
    assert outcome.error.startswith("EnvironmentProblem")
    assert "Horovod was built for torch 2.0.1, but" in outcome.message
    assert "--no-build-isolation --no-deps ./third_party/horovod`" in outcome.message
