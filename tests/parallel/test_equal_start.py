"""All ranks begin with what rank 0 has, whatever each of them drew; where they would not, none takes a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from harness.datasets import write_dataset
from harness.ranks import run_on_ranks
from sparkring.errors import RingError
from sparkring.models.blocks import WholeModel
from sparkring.models.build import build_model
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.events.writer import read_events
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.train_rank import train_rank
from tests.support import seams
from tests.support.training import largest_difference, train_config, weights_of_run

RANKS = 3

pytestmark = pytest.mark.parallel


def _begin_apart(context: RankContext, job: dict[str, Any], shift: float, told: bool) -> str:
    """Train on ranks whose networks are ``rank * shift`` apart; unless ``told``, each keeps its own. What it said in the end."""
    broadcast = Communicator.broadcast_bytes

    def drawn(*args: Any) -> WholeModel:
        model = build_model(*args)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(context.rank * shift)
        return model

    def kept(self: Communicator, data: bytes, *, name: str) -> bytes:
        return data if name == "start.fresh" else broadcast(self, data, name=name)

    seams.replace(seams.STRATEGY_BUILD_MODEL, drawn)
    if not told:
        seams.replace(seams.COMMUNICATOR_BROADCAST_BYTES, kept)
    try:
        train_rank(context, job)
    except RingError as error:
        return str(error)
    return ""


def _train(folder: Path, *, shift: float, told: bool = True) -> list[str]:
    write_dataset(folder / "dataset", ([200], [150]))
    config = train_config(folder, model={"hidden": [4]}, train={"epochs": 1, "batch_rows": 100, "optimizer": {"name": "adam"}})
    job = TrainJob(config=config, dataset_url=str(folder / "dataset"), dataset_version=1, run_url=str(folder / "run"), generation=0,
                   lanes=24)
    return run_on_ranks(RANKS, _begin_apart, job.model_dump(mode="json"), shift, told)


def test_ranks_that_drew_other_weights_begin_with_rank_0_s(tmp_path: Path) -> None:
    assert _train(tmp_path / "apart", shift=0.5) == _train(tmp_path / "alike", shift=0.0) == [""] * RANKS
    assert largest_difference(weights_of_run(tmp_path / "apart"), weights_of_run(tmp_path / "alike")) == 0


def test_control_ranks_that_are_not_told_are_named_by_all_before_the_first_step(tmp_path: Path) -> None:
    said = _train(tmp_path, shift=0.5, told=False)
    assert said == [said[0]] * RANKS
    assert "the model and optimizer state of ranks [1, 2] differs from rank 0's" in said[0]
    assert "step" not in {record["event"] for record in read_events(str(tmp_path / "run"))}
