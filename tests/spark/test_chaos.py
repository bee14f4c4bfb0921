"""A job under faults on purpose, as ``sparkring chaos`` runs it: it comes to its end, and what was lost is told."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from harness.datasets import write_dataset
from sparkring.conf.schema import Config
from sparkring.errors import DeadlinePassed
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.events.writer import read_events
from sparkring.spark_jobs.chaos import chaos
from sparkring.spark_jobs.fault_injection.faults import Fault
from sparkring.spark_jobs.fault_injection.injector import strikes, train_rank_under_faults
from sparkring.spark_jobs.spark.progress import SilentProgress
from sparkring.spark_jobs.train import train
from tests.support.training import events_of, train_config

pytest_plugins = ["tests.support.spark_sessions"]

INTERVAL = 20

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


class Notes(SilentProgress):
    """Keeps what a job says."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def _config(workspace: Path, **settings: Any) -> Config:
    write_dataset(workspace / "dataset", ([600, 600], [300], [501]))
    defaults = {"epochs": 2, "batch_rows": 10, "precision": "float64", "checkpoint_steps": INTERVAL, "lanes": 24,
                "optimizer": {"name": "adam", "schedule": "constant"}}
    return train_config(workspace, model={"hidden": [16]}, train={**defaults, **settings})


@pytest.mark.nightly
def test_a_job_under_faults_loses_no_row_and_ends_with_the_undisturbed_weights(spark: SparkSession, tmp_path: Path) -> None:
    config, notes = _config(tmp_path), Notes()
    result = chaos(config, num_faults=5, seed=7, kinds=["kill", "worker", "corrupt", "disk", "delay"], spark=spark, progress=notes)
    assert (result.survived, result.failure, result.audit) == (True, "", "green")
    assert result.kinds == dict.fromkeys(("kill", "worker", "corrupt", "disk", "delay"), 1)
    assert (result.rows_lost, result.rows_repeated, result.restarts) == (0, 0, 3)
    assert result.weights_difference is not None
    assert result.weights_difference < 1e-10
    assert result.validation == pytest.approx(result.undisturbed, rel=1e-9)
    assert result.steps_redone > 0
    assert len([one for one in result.losses.resumptions if one.resume_s]) == 3
    written = json.loads((Path(result.url) / "chaos.json").read_text(encoding="utf-8"))
    assert (written["rows_lost"], written["struck"], len(written["losses"]["resumptions"])) == (0, 5, 5)
    warned = " ".join(record["text"] for record in read_events(result.url) if record["event"] == "warning")
    assert "No space left on device" in warned  # the disk was full for two checkpoints, and nothing ended
    assert "BLAKE3" in warned  # the damaged checkpoint was named and passed over
    assert not (tmp_path / "runs").exists()  # the user's own run is not touched


def _stop(*, victim: float) -> dict[str, Any]:
    return Fault(number=0, kind="suspend", share=0.5, victim=victim).model_dump()


def test_a_rank_that_stands_still_is_named_and_the_run_goes_on_without_it(spark: SparkSession, tmp_path: Path) -> None:
    config, notes = _config(tmp_path, epochs=1, ring={"deadline_s": 6.0}), Notes()
    work = partial(train_rank_under_faults, faults=[_stop(victim=0.6)])
    assert train(config, spark=spark, progress=notes, work=work).steps == 201
    (strike,) = strikes(open_store(config.run_url))
    assert (strike.kind, strike.rank) == ("suspend", 1)
    assert [text for text in notes.said if "waited longer than train.ring.deadline_s for rank 1, which still ran" in text], notes.said
    assert {record["generation"] for record in events_of(config, "start")} == {0, 1}


@pytest.mark.nightly
def test_without_restarts_a_rank_that_stands_still_ends_the_run_with_a_typed_error(spark: SparkSession, tmp_path: Path) -> None:
    config = _config(tmp_path, epochs=1, ring={"deadline_s": 6.0}, recovery={"restarts": 0})
    with pytest.raises(DeadlinePassed) as caught:
        train(config, spark=spark, work=partial(train_rank_under_faults, faults=[_stop(victim=0.0)]))
    assert caught.value.awaited == (0,)
    assert caught.value.host
