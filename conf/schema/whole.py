"""The whole config, with all of its sections."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from sparkring.conf.schema.base.section import LocalPath, Positive, Section, one_spelling
from sparkring.conf.schema.cross_validate import CrossValidateConfig
from sparkring.conf.schema.data.prepare import PrepareConfig
from sparkring.conf.schema.ingest import IngestConfig
from sparkring.conf.schema.model import ImageModelConfig, ModelConfig, TabularModelConfig
from sparkring.conf.schema.retrain import RetrainConfig
from sparkring.conf.schema.search import SearchConfig
from sparkring.conf.schema.spark import ScoreConfig, SparkConfig
from sparkring.conf.schema.tracking import TrackingConfig
from sparkring.conf.schema.train import TrainConfig

RUN_NAME = re.compile(r"(?!.*\.json$)[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
"""A run's name is that of its folder, and of the document ``<name>.json`` beside it."""


class Config(Section):
    """The whole config. Each command reads the sections that concern it."""

    name: str
    """Shown in Spark's page, the events and the report."""
    workspace: LocalPath
    """Folder or URL of the dataset and the runs."""
    dataset_url: LocalPath | None = None
    """The dataset; default ``<workspace>/dataset``."""
    dataset_one_writer: bool = False
    """Promise that nobody else writes to the dataset during ``prepare``. Needed on stores that cannot refuse a second
    writer: sftp:, smb:, webdav: and others; not on local folders, s3:, hdfs:, gs: and abfs:."""
    dataset_version: Positive | None = None
    """The committed version to train on; default the latest."""
    fold: Annotated[int, Field(ge=0)] | None = None
    """Of a dataset version in folds (``prepare.split`` by fold): the fold that validates; the others train. ``sparkring
    cross-validate`` trains one run for each."""
    run: str | None = None
    """The run's name, e.g. ``wide``. Default: one made of the dataset version and of all that changes what is learned, so that another
    version, model or training is another run. For all commands but ``train`` also ``champion`` or ``candidate``: that model's run.
    """
    spark: SparkConfig = SparkConfig()
    prepare: PrepareConfig
    model: ModelConfig = TabularModelConfig()
    train: TrainConfig = TrainConfig()
    score: ScoreConfig = ScoreConfig()
    retrain: RetrainConfig = RetrainConfig()
    search: SearchConfig = SearchConfig()
    cross_validate: CrossValidateConfig = CrossValidateConfig()
    ingest: IngestConfig = IngestConfig()
    tracking: TrackingConfig | None = None
    """Send runs to MLflow, e.g. ``{mlflow_uri: http://mlflow.example.org:5000}``; null: no tracking."""

    @field_validator("workspace", "dataset_url")
    @classmethod
    def _one_spelling(cls, place: str | None) -> str | None:
        return None if place is None else one_spelling(place)

    @field_validator("run")
    @classmethod
    def _a_folder_s_name(cls, run: str | None) -> str | None:
        if run is not None and not RUN_NAME.fullmatch(run):
            raise ValueError("a run's name has 1 to 100 letters, digits, '.', '_' and '-', begins with a letter or a digit, and does not "
                             "end in .json; give e.g. wide-2")
        return run

    @model_validator(mode="after")
    def _batch_statistics_say_of_what(self) -> Self:
        if not (isinstance(self.model, ImageModelConfig) and self.model.norm == "batch"):
            return self
        self.train.require_rows_together("model.norm=batch")
        if self.train.parallel.micro_batches is None:
            raise ValueError("model.norm=batch normalises over the rows of a micro-batch; set train.parallel.micro_batches, so that the "
                             f"result does not depend on the number of ranks, e.g. to {self.train.num_micro_batches}")
        return self

    @model_validator(mode="after")
    def _loss_is_of_regression(self) -> Self:
        if self.train.loss != "squared" and self.prepare.task != "regression":
            raise ValueError(f"train.loss={self.train.loss} is for prepare.task: regression, and {self.prepare.task} has a loss of its "
                             "own; leave train.loss out, or set prepare.task to regression")
        return self

    @model_validator(mode="after")
    def _wire_joins_hosts(self) -> Self:
        master, wire = self.spark.remote or self.spark.master or "", self.train.ring.wire
        if wire != "exact" and master.startswith("local"):
            raise ValueError(f"train.ring.wire={wire} is for gradients between hosts, and spark.master={master} is one host; set "
                             "train.ring.wire to exact")
        return self

    def fitted_to(self, train_rows: int) -> Self:
        """This config with ``train.batch_rows`` filled in, for a train split of so many rows."""
        return self.changed(train=self.train.fitted_to(train_rows))

    @property
    def dataset(self) -> str:
        """URL of the dataset."""
        return self.dataset_url or f"{self.workspace}/dataset"

    @property
    def runs(self) -> str:
        """URL of the runs, one folder each."""
        return f"{self.workspace}/runs"

    @property
    def run_url(self) -> str:
        """URL of the run: events, checkpoints, the trained model, its evaluation, scores and report."""
        assert self.run is not None, "with_run() or with_existing_run() comes first (spark_jobs/run/place.py)"
        return f"{self.runs}/{self.run}"

    @property
    def scores(self) -> str:
        """URL of the Parquet that the run's model scored."""
        return f"{self.run_url}/scores"
