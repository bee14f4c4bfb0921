"""``run_ring`` over Spark Connect, where there is no SparkContext."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ring_functions
from tests.support.cell import needs_connect
from tests.support.ring_driver import Driver, assert_no_process_left, driver, marks, wait_until

pytestmark = needs_connect


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with driver(tmp_path_factory.mktemp("connect"), {"remote": "local[3]"}, environment={"SPARK_TESTING": "1"}) as running:
        yield running


def test_results_come_back_by_rank(connect: Driver, tmp_path: Path) -> None:
    ranks = connect.ring(ring_functions.introduce, str(tmp_path), num_ranks=3).results
    assert [(told["rank"], told["horovod"], told["sum"]) for told in ranks] == [(rank, [rank, 3, rank], 33.0) for rank in range(3)]
    assert_no_process_left(ranks[0]["token"])


def test_an_exception_names_its_rank_and_brings_its_traceback(connect: Driver) -> None:
    outcome = connect.ring(ring_functions.raise_on_rank_1, num_ranks=2)
    assert outcome.error.startswith("RankFailed")
    assert outcome.attributes["rank"] == 1
    assert "in raise_on_rank_1" in outcome.attributes["rank_traceback"]


def test_more_ranks_than_slots_are_refused(connect: Driver) -> None:
    outcome = connect.ring(ring_functions.raise_on_rank_1, num_ranks=4)
    assert outcome.error.startswith("NotEnoughSlots")


def test_slots_that_stay_taken_are_refused_after_the_start_timeout(connect: Driver, tmp_path: Path) -> None:
    connect.tell({"do": "occupy", "until": str(tmp_path / "free")})
    wait_until((tmp_path / "free.busy").exists, "the other job")
    outcome = connect.ring(ring_functions.sleep, str(tmp_path), num_ranks=3, start_timeout_s=4)
    (tmp_path / "free").touch()
    assert outcome.error.startswith("NotEnoughSlots")
    assert not list(tmp_path.glob("rank-*"))


def test_ctrl_c_ends_the_ranks(connect: Driver, tmp_path: Path) -> None:
    connect.begin(ring_functions.sleep, str(tmp_path), num_ranks=2)
    token = marks(tmp_path, num_ranks=2)[0]["token"]
    connect.send_signal(signal.SIGINT)
    assert connect.outcome().error.startswith("KeyboardInterrupt")
    assert_no_process_left(token)


def test_upstream_s_launcher_is_refused_since_it_needs_a_spark_context(connect: Driver) -> None:
    outcome = connect.ring(ring_functions.raise_on_rank_1, num_ranks=2, launcher="horovod.spark")
    assert outcome.error.startswith("EnvironmentProblem")
    assert "use launcher: barrier" in outcome.message
