"""The whole config, with all of its sections."""

from __future__ import annotations

from sparkring.conf.schema.model import ModelConfig, TabularModelConfig
from sparkring.conf.schema.prepare import PrepareConfig
from sparkring.conf.schema.section import Positive, Section
from sparkring.conf.schema.spark import ScoreConfig, SparkConfig
from sparkring.conf.schema.train import TrainConfig


class Config(Section):
    """All that one job needs. ``sparkring train NAME`` and the others read the parts that concern them."""

    name: str
    """Shown in Spark's page, the events and the report."""
    workspace: str
    """Folder or URL under which datasets, runs, scores and reports go."""
    dataset_url: str | None = None
    """The dataset; default ``<workspace>/dataset``."""
    dataset_version: Positive | None = None
    """The committed version to train on; default the latest."""
    spark: SparkConfig = SparkConfig()
    prepare: PrepareConfig
    model: ModelConfig = TabularModelConfig()
    train: TrainConfig = TrainConfig()
    score: ScoreConfig = ScoreConfig()

    @property
    def dataset(self) -> str:
        """URL of the dataset."""
        return self.dataset_url or f"{self.workspace}/dataset"

    @property
    def run(self) -> str:
        """URL of the training run: events, checkpoints and the trained model."""
        return f"{self.workspace}/run"

    @property
    def scores(self) -> str:
        """URL of the scored Parquet."""
        return f"{self.workspace}/scores"
