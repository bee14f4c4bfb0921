"""A network of the user's own through Spark: from a file by the command line, and registered in the program; whole and in stages."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pyspark.sql import SparkSession
from torch import Tensor, nn

import sparkring
from harness.datasets import write_dataset
from harness.image_dataset import write_image_dataset
from sparkring.conf.schema import Config
from sparkring.models.blocks import LOGITS, Block, BlockList, X
from sparkring.models.build import Shapes
from sparkring.spark_jobs.stored.audit import audit
from tests.support.command_line import said
from tests.support.training import largest_difference, train_config, weights_of_run

pytest_plugins = ["tests.support.spark_sessions"]

FILE = """
import sparkring
import torch
from torch import nn

class Both(nn.Module):
    def __init__(self, shapes, width):
        super().__init__()
        self.table = nn.Embedding(shapes.cardinalities[0], 2)
        self.layers = nn.Sequential(nn.Linear(shapes.num_numeric + 2, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, numeric, categorical):
        return self.layers(torch.cat([numeric, self.table(categorical[:, 0])], 1))

@sparkring.network
def both(shapes, *, width=8):
    return Both(shapes, width)
"""


@sparkring.network
def skipping(shapes: Shapes, *, width: int) -> BlockList:
    """Blocks with a connection that skips one, and a category."""
    def joined(parts: list[nn.Module], numeric: Tensor, categorical: Tensor) -> Tensor:
        made: Tensor = parts[0](torch.cat([numeric, parts[1](categorical[:, 0])], 1))
        return made

    return BlockList((
        Block("in", {"in": lambda: nn.Linear(shapes.num_numeric + 2, width), "table": lambda: nn.Embedding(shapes.cardinalities[0], 2)},
              run=joined, reads=("numeric", "categorical")),
        Block("middle", {"middle": lambda: nn.Linear(width, width)}, writes=("y",)),
        Block("out", {"out": lambda: nn.Linear(width, 1)}, run=lambda parts, x, y: parts[0](x + torch.relu(y))[:, 0], reads=(X, "y"),
              writes=(LOGITS,))), inputs=("numeric", "categorical"))


@sparkring.network
def flat(shapes: Shapes, *, width: int = 8) -> nn.Sequential:
    assert shapes.image is not None
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shapes.image), width), nn.ReLU(), nn.Linear(width, shapes.num_outputs))


def _trained(folder: Path, *arguments: str, **sections: Any) -> Config:
    """A run of the command ``train`` on the rows that the model is for."""
    config = train_config(folder, **sections)
    if config.model.kind == "image":
        write_image_dataset(Path(config.dataset), [60, 61])
    else:
        write_dataset(Path(config.dataset), ([200], [101]), test_rows=90)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
    assert "2 epochs (trained)" in said(*arguments, "train", str(path))
    return config


def _train(**layout: Any) -> dict[str, Any]:
    return {"epochs": 2, "batch_rows": 20, "precision": "float64", "lanes": 24, "optimizer": {"schedule": "constant"}, **layout}


def test_a_network_from_a_file_trains_on_two_ranks_as_on_one_is_evaluated_and_scores(
        spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE, encoding="utf-8")
    model = {"network": "both", "options": {"width": 6}}
    for ranks in (1, 2):
        _trained(tmp_path / str(ranks), "--networks", str(file), model=model, train=_train(num_ranks=ranks))
    assert largest_difference(*(weights_of_run(tmp_path / name) for name in ("2", "1"))) < 1e-10
    assert "network.layers.0.weight" in weights_of_run(tmp_path / "2")
    evaluated = json.loads(said("--networks", str(file), "evaluate", str(tmp_path / "2/config.yaml"), "--json"))
    assert (evaluated["split"], evaluated["network"]["rows"], evaluated["base_rate"]["rows"]) == ("test", 90, 90)
    said("--networks", str(file), "score", str(tmp_path / "2/config.yaml"), "--set", "score.split=validation")
    scored = spark.read.parquet(f"{tmp_path}/2/runs/first/scores/*")
    assert (scored.count(), scored.where("probability between 0 and 1").count()) == (257, 257)


@pytest.mark.parametrize(("model", "parallel"), [
    ({"kind": "tabular", "network": "skipping", "options": {"width": 5}}, {"replicas": [1, 1], "cut": [2, 1]}),
    ({"kind": "image", "network": "flat"}, {"replicas": [1, 1], "micro_batches": 4})], ids=["blocks that skip one", "a sequence"])
def test_a_network_of_the_program_trains_in_stages_to_the_same_weights(
        spark: SparkSession, tmp_path: Path, model: dict[str, Any], parallel: dict[str, Any]) -> None:
    layouts: dict[str, dict[str, Any]] = {"alone": {"num_ranks": 1}, "staged": {"num_ranks": 2, "parallel": parallel}}
    for name, layout in layouts.items():
        assert audit(_trained(tmp_path / name, model=model, train=_train(**layout)).run_url).finished
    assert largest_difference(*(weights_of_run(tmp_path / name) for name in ("staged", "alone"))) < 1e-10
