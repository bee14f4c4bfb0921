"""The end of a run: which epoch becomes its model, also where a held-out metric is not a number."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save

from harness.datasets import write_dataset
from sparkring.errors import NotFinite, SparkringError
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument, Position
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.evaluation.score import score_of
from sparkring.pipelines.training.job.job import TrainSummary
from sparkring.pipelines.training.job.model_files import load_card
from sparkring.pipelines.training.loop.early_stopping import metric_of
from sparkring.pipelines.training.loop.finish import save_best_model
from sparkring.spark_jobs.run.folder import RunFolder
from tests.support.training import train_config


def _ended(folder: Path, *epochs: dict[str, float] | None, **train: Any) -> Any:
    """What rank 0 has at the end of a run with checkpoints of these held-out metrics; None: of one within an epoch."""
    checkpoints = Checkpoints(str(folder / "run"))
    config = train_config(folder, train=train)
    for number, validation in enumerate(epochs, start=1):
        part = checkpoints.put_part(save({"model/weight": torch.full((2,), float(number))}), steps=number, rank=0)
        checkpoints.commit(CheckpointDocument(
            position=Position(epoch=number, steps_done=number), validation=validation, content_id="c", dataset_version=1, seed=1, lanes=24,
            score=score_of(validation, metric_of(config.train)) if validation else None, batch_rows=8, code_version="test", parts=(part,)))
    manifest = write_dataset(folder / "dataset", ([20],), validation_rows=5).manifest()
    job = SimpleNamespace(run_url=str(folder / "run"), dataset_url=str(folder / "dataset"), dataset_version=1)
    return SimpleNamespace(job=job, manifest=manifest, checkpoints=checkpoints, config=config)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf], ids=str)
def test_the_best_epoch_s_metrics_are_read_back_as_they_were_also_where_one_is_no_finite_number(tmp_path: Path, loss: float) -> None:
    setup = _ended(tmp_path, {"loss": 0.5, "accuracy": 0.5}, {"loss": loss, "accuracy": 0.75}, early_stopping={"metric": "accuracy"})
    card = save_best_model(setup)
    assert card.epoch == 2
    RunFolder(setup.job.run_url).finish(TrainSummary(steps=2, resumed_at=0, validation=card.validation))
    result = RunFolder(setup.job.run_url).result()
    assert result is not None
    for validation in (load_card(setup.job.run_url).validation, result.validation):
        assert validation == pytest.approx({"loss": loss, "accuracy": 0.75}, nan_ok=True)


def test_a_run_whose_held_out_metric_was_nan_in_every_epoch_says_so_and_what_to_change(tmp_path: Path) -> None:
    setup = _ended(tmp_path, {"loss": math.nan, "accuracy": 0.5}, None, {"loss": math.nan, "accuracy": 0.5})
    with pytest.raises(NotFinite, match=r"^the held-out loss was NaN in every epoch: the network diverged; lower train\.optimizer\.lr\.$"):
        save_best_model(setup)


@pytest.mark.parametrize("epochs", [pytest.param([None], id="no epoch ended"), pytest.param([{"loss": 0.5}], id="its state is damaged")])
def test_where_no_whole_checkpoint_of_an_epoch_is_left_the_network_is_not_blamed(
        tmp_path: Path, epochs: list[dict[str, float] | None]) -> None:
    setup = _ended(tmp_path, *epochs, {"loss": math.nan})
    for part in (tmp_path / "run/checkpoints/data").iterdir():
        part.write_bytes(b"damaged")
    if epochs == [None]:
        (tmp_path / "run/checkpoints/2-0.json").unlink()
    with pytest.raises(SparkringError, match="no whole checkpoint of a finished epoch left") as raised:
        save_best_model(setup)
    assert not isinstance(raised.value, NotFinite)
