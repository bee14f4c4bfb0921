"""A whole run in a bucket and in HDFS: train, lose a rank, go on by the same call, audit, report, score; as on local disk."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from harness.datasets import write_dataset
from sparkring.conf.loading import parse_config
from sparkring.conf.schema import Config
from sparkring.errors import CommitConflict, RankDied
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.job.model_files import load_model
from sparkring.spark_jobs.report import report
from sparkring.spark_jobs.score import score
from sparkring.spark_jobs.stored.audit import audit
from sparkring.spark_jobs.stored.checkpoints import list_checkpoints, verify_checkpoints
from sparkring.spark_jobs.train import train
from tests.support.configs import MINIMAL
from tests.support.spark_sessions import end_jvm, own_context
from tests.support.training import await_condition, events_of, largest_difference, weights_of_run

pytest_plugins = ["tests.support.places"]

pytestmark = pytest.mark.timeout(300)

FILES = ([600, 600], [300], [501])
ROWS, EPOCHS = 2001, 3
DEADLINE_S = 120.0


@pytest.fixture(scope="module", params=["s3", pytest.param("hdfs", marks=pytest.mark.nightly)])
def root(request: pytest.FixtureRequest) -> str:
    """The URL of a folder in a store that this process's environment leads to."""
    if request.param == "s3":
        return str(request.getfixturevalue("bucket"))
    return str(request.getfixturevalue("hadoop").url)


@pytest.fixture(scope="module")
def spark(root: str) -> Iterator[SparkSession]:
    """With a JVM of its own, which starts once the environment leads to the store: its ranks inherit that environment."""
    end_jvm()
    with own_context("local[2]") as session:
        yield session
    end_jvm()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """On local disk: that datasets lie in stores is another test's."""
    folder = tmp_path_factory.mktemp("dataset")
    write_dataset(folder, FILES)
    return str(folder)


def _config(workspace: str, dataset: str, **train_settings: Any) -> Config:
    return parse_config({**MINIMAL, "workspace": workspace, "dataset_url": dataset, "model": {"hidden": [16]}, "train": {
        "epochs": EPOCHS, "batch_rows": 10, "precision": "float64", "checkpoint_steps": 50, "lanes": 24, "num_ranks": 2,
        "optimizer": {"name": "adam", "schedule": "constant"}, **train_settings}}, origin="test")


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, dataset: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run on local disk."""
    folder = tmp_path_factory.mktemp("undisturbed")
    train(_config(str(folder), dataset), spark=spark)
    return folder


@pytest.fixture
def workspace(root: str) -> str:
    """A folder that nothing else uses."""
    return f"{root}/runs/{uuid.uuid4().hex}"


def _train_and_kill(config: Config, spark: SparkSession) -> BaseException | None:
    """Train until there is a checkpoint, then kill a rank; what the call of train ended with."""
    ended: list[BaseException | None] = []

    def work() -> None:
        try:
            train(config, spark=spark)
            ended.append(None)
        except BaseException as error:  # noqa: BLE001 (the test looks at it)
            ended.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    (pid,) = await_condition(lambda: [one["pid"] for one in events_of(config, "start") if one["rank"] == 1], "rank 1's start")
    await_condition(Checkpoints(config.run_url).numbers, "a checkpoint")
    os.kill(pid, signal.SIGSTOP)  # else the run may be over before it is killed, where other work holds this process up
    with pytest.raises(CommitConflict, match="is being trained by another process"):
        train(config, spark=spark)
    os.kill(pid, signal.SIGKILL)
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    return ended[0]


def test_a_run_lives_in_a_store_through_the_death_of_a_rank_and_is_reported_and_scored_there(
        workspace: str, dataset: str, spark: SparkSession, undisturbed: Path) -> None:
    config = _config(workspace, dataset, recovery={"restarts": 0})
    error = _train_and_kill(config, spark)
    assert isinstance(error, RankDied), error
    committed = Checkpoints(config.run_url).numbers()[-1]
    proved = audit(config.run_url)  # of what the dead rank had told its machine nothing is needed: what counts is in the store
    assert not proved.finished
    epochs, steps = divmod(committed, -(-ROWS // 10))
    assert proved.epochs * ROWS + proved.rows_begun >= epochs * ROWS + steps * 10
    result = train(config, spark=spark)
    assert result.resumed_at >= committed
    weights = weights_of_run_at(config.run_url)
    assert largest_difference(weights, weights_of_run(undisturbed)) < 1e-10
    proved = audit(config.run_url)
    assert (proved.finished, proved.epochs, proved.rows) == (True, EPOCHS, ROWS)
    assert {part.generation for part in proved.parts} == {0, 1}
    assert train(config, spark=spark).reused
    assert all(not each.problem for each in verify_checkpoints(config.run_url))
    assert [each.steps for each in list_checkpoints(config.run_url)] == Checkpoints(config.run_url).numbers()
    assert {"training run", "trained model"}.isdisjoint(report(config).absent)
    assert b"epoch" in open_store(config.run_url).read("report.html")
    scored = score(config.model_copy(update={"score": config.score.model_copy(update={"split": "validation"})}), spark=spark)
    assert (scored.rows, scored.reused) == (257, False)
    assert scored.url.startswith(workspace.partition("://")[0])


def weights_of_run_at(url: str) -> dict[str, Any]:
    """The trained network's parameters and buffers."""
    return dict(load_model(url)[0].state_dict())
