"""The default batch fits the rows: a small table gets steps enough to learn from, and the user hears of a batch that leaves too few."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkring.conf.schema import Config, TrainConfig
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.spark_jobs.run.batch import with_batch
from sparkring.spark_jobs.spark.progress import Progress
from tests.support.report_samples import sample_config


@pytest.mark.parametrize(("rows", "batch_rows"), [
    pytest.param(1, 32, id="one row"), pytest.param(453, 32, id="a table of 569 rows"), pytest.param(3_199, 32, id="just under 50 of 64"),
    pytest.param(3_200, 64, id="50 of 64"), pytest.param(51_199, 512, id="just under 50 of 1024"),
    pytest.param(51_200, 1024, id="50 of 1024"), pytest.param(10**9, 1024, id="many rows")])
def test_the_default_is_a_power_of_two_that_leaves_fifty_steps(rows: int, batch_rows: int) -> None:
    assert TrainConfig().fitted_to(rows).step_rows == batch_rows
    assert TrainConfig(num_ranks=7).fitted_to(rows).step_rows == batch_rows, "whatever the ring's width"
    assert TrainConfig(batch_rows=77).fitted_to(rows).step_rows == 77, "what is given stays"


@pytest.mark.parametrize(("given", "rows", "expected"), [
    pytest.param(None, 453, "training: batches of 32 rows, 15 steps an epoch (train.batch_rows sets another size)", id="the default"),
    pytest.param(1024, 453, "training: warning: train.batch_rows=1024 makes only 1 step an epoch of 453 train rows, 5 in all; leave "
                 "train.batch_rows out to have a size that fits (32), or raise train.epochs", id="too large a batch"),
    pytest.param(1024, 10_240, None, id="ten steps")])
def test_the_batch_is_reported_where_it_was_chosen_or_leaves_few_steps(
        tmp_path: Path, given: int | None, rows: int, expected: str | None) -> None:
    notes: list[str] = []
    config: Config = sample_config(tmp_path)
    changes: dict[str, Any] = {"batch_rows": given, "epochs": 5}
    config = config.model_copy(update={"train": config.train.model_copy(update=changes)})
    manifest = cast(Manifest, SimpleNamespace(splits={"train": SimpleNamespace(rows=rows)}))
    fitted = with_batch(config, manifest, cast(Progress, SimpleNamespace(note=notes.append)))
    assert (fitted.train.batch_rows, notes) == (given or 32, [expected] if expected else [])
