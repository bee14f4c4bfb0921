"""``train.parallel: auto`` through Spark: measure, plan, train; and go on from another layout without measuring again."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession

from harness.datasets import write_dataset
from sparkring.conf.schema import Config
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.events.writer import read_events
from sparkring.spark_jobs.auto_layout import PROFILE, with_planned_layout
from sparkring.spark_jobs.run.folder import RESULT
from sparkring.spark_jobs.spark.progress import SilentProgress
from sparkring.spark_jobs.train import train
from tests.support.training import largest_difference, train_config, weights_of_run

pytest_plugins = ["tests.support.spark_sessions"]

FILES = ([600, 600], [300], [501])


class Notes(SilentProgress):
    """Keeps what was noted."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        """Keep it."""
        self.texts.append(text)


def _config(workspace: Path, parallel: object) -> Config:
    return train_config(workspace, model={"hidden": [16, 8]}, train={
        "num_ranks": 2, "epochs": 2, "batch_rows": 100, "precision": "float64", "lanes": 24, "optimizer": {"schedule": "constant"},
        "parallel": parallel})


def _take_back_an_epoch(config: Config) -> None:
    """Leave the run as if its ring had died in its second epoch."""
    run = Path(config.run_url)
    (run / RESULT).unlink()
    next((run / "checkpoints").glob(f"{max(Checkpoints(config.run_url).numbers())}-*.json")).unlink()


def test_a_planned_run_goes_on_from_another_layout_and_is_measured_once(spark: SparkSession, tmp_path: Path) -> None:
    staged, planned = _config(tmp_path, {"replicas": [1, 1], "micro_batches": 4}), _config(tmp_path, "auto")
    write_dataset(Path(staged.dataset), FILES)
    train(staged, spark=spark)
    wanted = weights_of_run(tmp_path)
    profiles = []
    for _ in range(2):
        _take_back_an_epoch(staged)
        notes = Notes()
        result = train(planned, spark=spark, progress=notes)
        assert 0 < result.resumed_at < result.steps
        assert largest_difference(weights_of_run(tmp_path), wanted) < 1e-10
        assert any(text.startswith("training: planned ") and "ms a step" in text for text in notes.texts)
        profiles.append(json.loads((Path(planned.run_url) / PROFILE).read_text()))
    assert profiles[0] == profiles[1], "the second start found what the first one measured"
    laid = with_planned_layout(planned, open_store(planned.run_url)).train.parallel
    assert laid.model_dump(mode="json") == profiles[1]["chosen"]["parallel"]
    told = [record for record in read_events(planned.run_url) if record["event"] == "plan"]
    assert {(record["rank"], record["generation"]) for record in told} == {(0, 1), (0, 2)}
    assert all(record["predicted_s"] > 0 and record["measured_s"] > 0 for record in told)
