"""No rank takes a step on a dataset that has changed since its commit: all of them end with the name of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.errors import DatasetChanged
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.events.writer import read_events
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.train_rank import train_rank
from tests.support.training import train_config

FILES = ([100], [110], [120], [130], [140])
RANKS = 3

pytestmark = pytest.mark.parallel


def _try_to_train(context: RankContext, job: dict[str, Any]) -> str:
    try:
        train_rank(context, job)
    except DatasetChanged as error:
        return str(error)
    return ""


def _train(folder: Path) -> list[str]:
    config = train_config(folder, model={"hidden": [4]}, train={"epochs": 1, "batch_rows": 200})
    job = TrainJob(config=config, dataset_url=str(folder / "dataset"), dataset_version=1, run_url=str(folder / "run"), generation=0,
                   lanes=24)
    return run_on_ranks(RANKS, _try_to_train, job.model_dump(mode="json"))


def _events(folder: Path) -> set[str]:
    return {record["event"] for record in read_events(str(folder / "run"))}


def test_every_rank_names_what_any_of_them_found_and_none_takes_a_step(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset", FILES)
    files = [tmp_path / "dataset" / file.path for file in Dataset(dataset.url).manifest().splits["train"].files]
    files[1].unlink()
    table = pq.read_table(files[3])
    pq.write_table(table.set_column(1, pa.field("late", pa.float64(), nullable=False), table["late"].cast(pa.float64())), files[3])
    said = _train(tmp_path)
    assert said == [said[0]] * RANKS
    assert "train/part-1.parquet is missing" in said[0]
    assert "train/part-3.parquet has another schema than the manifest: late is double instead of int8" in said[0]
    assert _events(tmp_path) == set()


def test_control_on_the_committed_files_the_same_ranks_train(tmp_path: Path) -> None:
    write_dataset(tmp_path / "dataset", FILES)
    assert _train(tmp_path) == [""] * RANKS
    assert "step" in _events(tmp_path)
