"""The whole config, with all of its sections."""

from __future__ import annotations

from typing import Self

from pydantic import field_validator, model_validator
from pydantic_core import PydanticCustomError

from sparkring.conf.schema.model import ImageModelConfig, ModelConfig, TabularModelConfig
from sparkring.conf.schema.prepare import PrepareConfig
from sparkring.conf.schema.section import LOGIN, SECRET, Positive, Section
from sparkring.conf.schema.spark import ScoreConfig, SparkConfig
from sparkring.conf.schema.tracking import TrackingConfig
from sparkring.conf.schema.train import TrainConfig


class Config(Section):
    """The whole config. Each command reads the sections that concern it."""

    name: str
    """Shown in Spark's page, the events and the report."""
    workspace: str
    """Folder or URL for datasets, runs, scores and reports."""
    dataset_url: str | None = None
    """The dataset; default ``<workspace>/dataset``."""
    dataset_one_writer: bool = False
    """Promise that nobody else writes to the dataset during ``prepare``. Needed on stores that cannot refuse a second
    writer: sftp:, smb:, webdav: and others; not on local folders, s3:, hdfs:, gs: and abfs:."""
    dataset_version: Positive | None = None
    """The committed version to train on; default the latest."""
    spark: SparkConfig = SparkConfig()
    prepare: PrepareConfig
    model: ModelConfig = TabularModelConfig()
    train: TrainConfig = TrainConfig()
    score: ScoreConfig = ScoreConfig()
    tracking: TrackingConfig | None = None
    """Send runs to MLflow, e.g. ``{mlflow_uri: http://mlflow.example.org:5000}``; null: no tracking."""

    @field_validator("workspace", "dataset_url")
    @classmethod
    def _one_spelling(cls, place: str | None) -> str | None:
        if place is None:
            return None
        if place.startswith("~"):
            raise ValueError("~ means a home folder only in a shell; give the whole path")
        if LOGIN.search(place):
            raise PydanticCustomError(SECRET, "a config holds no password and no key; leave them out of the address and give them to "
                                      "the store's own library, in its environment or its files (the address is not shown)")
        shorter = place.rstrip("/")  # s3://bucket/prefix//dataset is not s3://bucket/prefix/dataset
        return place if not shorter or shorter.endswith(":") else shorter

    @model_validator(mode="after")
    def _batch_statistics_say_of_what(self) -> Self:
        if isinstance(self.model, ImageModelConfig) and self.model.norm == "batch" and self.train.parallel.micro_batches is None:
            raise ValueError("model.norm=batch normalises over the rows of a micro-batch; set train.parallel.micro_batches, so that the "
                             f"result does not depend on the number of ranks, e.g. to {self.train.num_micro_batches}")
        return self

    def fitted_to(self, train_rows: int) -> Self:
        """This config with ``train.batch_rows`` filled in, for a train split of so many rows."""
        return self.changed(train=self.train.fitted_to(train_rows))

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
