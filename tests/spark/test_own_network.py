"""A network of the user's own through Spark: from a file by the command line, and registered in the program; whole and in stages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from pyspark.sql import SparkSession
from torch import Tensor, nn

import sparkring
from sparkring.conf.schema import Config
from sparkring.models.blocks import LOGITS, Block, BlockList, X
from sparkring.models.build import Shapes
from sparkring.spark_jobs.audit import audit
from tests.support.command_session import command_session, said
from tests.support.datasets import write_dataset
from tests.support.image_dataset import write_image_dataset
from tests.support.training import largest_difference, train_config, weights_of_run

FILE = """
import sparkring
from torch import nn

@sparkring.network
def flat(shapes, *, width=8):
    channels, rows, columns = shapes.image
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * rows * columns, width), nn.ReLU(), nn.Linear(width, shapes.num_outputs))
"""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with command_session(tmp_path_factory.mktemp("bytecode"), "test_own_network") as session:
        yield session


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


def test_a_network_from_a_file_trains_in_stages_as_on_one_rank_and_is_judged_and_scores(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE, encoding="utf-8")
    model = {"kind": "image", "network": "flat", "options": {"width": 6}}
    layouts = {"alone": {"num_ranks": 1}, "staged": {"num_ranks": 2, "parallel": {"replicas": [1, 1], "micro_batches": 4}}}
    configs = {}
    for name, layout in layouts.items():
        config = train_config(tmp_path / name, model=model, train={
            "epochs": 2, "batch_rows": 20, "precision": "float64", "lanes": 24, "optimizer": {"schedule": "constant"}, **layout})
        write_image_dataset(Path(config.dataset), [60, 61])
        configs[name] = tmp_path / f"{name}.yaml"
        configs[name].write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
        trained = said("--networks", str(file), "train", str(configs[name]))
        assert "2 epochs (trained in " in trained
    assert largest_difference(*(weights_of_run(tmp_path / name) for name in ("staged", "alone"))) < 1e-10
    assert {name.partition(".")[0] for name in weights_of_run(tmp_path / "staged")} == {"1", "3"}
    assert "accuracy" in said("--networks", str(file), "evaluate", str(configs["staged"]), "--json")
    said("--networks", str(file), "score", str(configs["staged"]), "--set", "score.split=validation")
    assert spark.read.parquet(f"{tmp_path}/staged/scores/*").count() == 29


def test_a_network_of_the_program_trains_on_any_layout_to_the_same_weights(spark: SparkSession, tmp_path: Path) -> None:
    def config(name: str, **layout: object) -> Config:
        made = train_config(tmp_path / name, model={"network": "skipping", "options": {"width": 5}}, train={
            "epochs": 1, "batch_rows": 50, "precision": "float64", "lanes": 24, **layout})
        write_dataset(Path(made.dataset), ([200], [101]))
        return made

    alone, staged = config("alone", num_ranks=1), config("staged", num_ranks=2, parallel={"replicas": [1, 1], "cut": [2, 1]})
    for each in (alone, staged):
        sparkring.train(each, spark=spark)
        assert audit(each.run).finished
    assert largest_difference(*(weights_of_run(tmp_path / name) for name in ("staged", "alone"))) < 1e-10
