"""``TorchClassifier`` and ``TorchRegressor``: Spark ML estimators that train a network on a ring of ranks.

    model = sparkring.TorchClassifier(labelCol="late", numRanks=2).fit(flights)
    model.transform(flights)

A fit looks at the frame's columns (look.py), makes a config of what it found, and runs ``prepare`` and ``train``.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

from pyspark import StorageLevel, keyword_only
from pyspark.ml import Estimator
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable
from pyspark.sql import DataFrame, SparkSession

from sparkring.conf.loading import load_config
from sparkring.conf.schema import Config
from sparkring.errors import ConfigError
from sparkring.estimator.look import LABEL, WEIGHT, Asked, Found, look, told
from sparkring.estimator.model import TorchModel
from sparkring.estimator.params import TrainParams
from sparkring.estimator.slots import ranks_held, slots_there_are
from sparkring.notebook.interactive import for_caller
from sparkring.spark_jobs.inference.sections import TEST_SHARE, VALIDATION_SHARE
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.scoring.predict import Model
from sparkring.spark_jobs.spark.frames import require_spark_frame
from sparkring.spark_jobs.spark.slots import is_local, master_of
from sparkring.spark_jobs.spark.versions.supported import is_connect
from sparkring.spark_jobs.train import train

PATIENCE_EPOCHS = 3
_THIS_HOST = ("localhost", "127.0.0.1", "::1")


class TorchEstimator(Estimator[TorchModel], TrainParams, DefaultParamsWritable, DefaultParamsReadable[Any]):
    """Trains a network to predict a column of a DataFrame: a class or a number, whichever the column looks like."""

    _classes: ClassVar[bool | None] = None
    _input_kwargs: dict[str, Any]

    @keyword_only
    def __init__(  # noqa: PLR0913 - Spark ML's constructors take all parameters
                 self, *, labelCol: str = "label", featuresCols: list[str] | None = None, featuresCol: str | None = None,
                 weightCol: str | None = None, predictionCol: str = "prediction", probabilityCol: str = "probability",
                 rawPredictionCol: str = "rawPrediction", numRanks: int | None = None, epochs: int = 10, batchRows: int | None = None,
                 learningRate: float = 1e-3, hiddenSizes: list[int] | None = None, modelKind: str | None = None,
                 workspace: str | None = None, seed: int = 1, config: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._set(**self._input_kwargs)

    def explain(self, dataset: DataFrame) -> str:
        """What a fit would make of each column, and why; nothing is trained.

        Raises:
            SourceError: as ``fit``.
        """
        require_spark_frame(dataset, what="the frame to fit")
        return told(look(dataset, self._asked()).choices)

    def _fit(self, dataset: DataFrame) -> TorchModel:
        require_spark_frame(dataset, what="the frame to fit")
        spark = dataset.sparkSession
        num_ranks = self.getNumRanks() if self.isDefined(self.numRanks) else slots_there_are(spark)
        with ranks_held(spark, num_ranks), self._folder(spark) as folder, ExitStack() as kept:
            if dataset.storageLevel == StorageLevel.NONE:  # else somebody has persisted it, and goes on using it
                dataset.persist()
                kept.callback(dataset.unpersist)
            found = look(dataset, self._asked())
            if found.label.nulls:
                warnings.warn(f"{found.label.nulls:,} rows without a {found.label.name} are left out", stacklevel=4)
            with _view(found.rows_of(dataset, classes=self._classes)) as view:
                config = self._config_of(found, view=view, folder=folder, num_ranks=num_ranks)
                for_caller(prepare)(config, spark=spark)
                result = for_caller(train)(config, spark=spark)
            model = TorchModel(trained=Model.of(result.url), columns=found.columns, choices=found.choices,
                               run_url=result.url if self.isDefined(self.workspace) else None)
            return self._copyValues(model)

    def _asked(self) -> Asked:
        features = tuple(self.getFeaturesCols()) if self.isDefined(self.featuresCols) else None
        if self.isDefined(self.featuresCol):
            if features is not None:
                raise ConfigError(f"featuresCol={self.getFeaturesCol()} and featuresCols={list(features)} are both set; clear one of them.")
            features = (self.getFeaturesCol(),)
        return Asked(self.getLabelCol(), features, self.getWeightCol() if self.isDefined(self.weightCol) else None, self._classes)

    def _config_of(self, found: Found, *, view: str, folder: str, num_ranks: int) -> Config:
        source = f"rows_{uuid.uuid4().hex[:8]}"  # prepare makes a view of this name, and fits may run at once in one session
        inferred: dict[str, Any] = {
            "name": self.uid, "workspace": folder,
            "prepare": {"sources": {source: {"format": "table", "table": view}},
                        "query": f"SELECT * FROM {source}",  # noqa: S608 - a name of our own
                        "label": LABEL, "task": found.choices.task, "features": found.features,
                        "split": {"by": "random", "validation_share": VALIDATION_SHARE, "test_share": TEST_SHARE}},
            "model": self._network_of(found),
            "train": {"num_ranks": num_ranks, "epochs": self.getEpochs(), "seed": self.getSeed(),
                      "optimizer": {"lr": self.getLearningRate()}, "early_stopping": {"patience_epochs": PATIENCE_EPOCHS}}}
        if found.weight is not None:
            inferred["prepare"]["weight"] = WEIGHT
        if self.isDefined(self.batchRows):
            inferred["train"]["batch_rows"] = self.getBatchRows()
        return load_config(inferred, **self.getConfig())

    def _network_of(self, found: Found) -> dict[str, Any]:
        kind = self.getModelKind() if self.isDefined(self.modelKind) else "image" if found.has_image else "tabular"
        sizes = {"image": "widths", "tabular": "hidden"}
        return {"kind": kind} | ({sizes[kind]: self.getHiddenSizes()} if self.isDefined(self.hiddenSizes) else {})

    @contextmanager
    def _folder(self, spark: SparkSession) -> Iterator[str]:
        """A folder for all that this fit makes."""
        if self.isDefined(self.workspace):
            yield f"{self.getWorkspace().rstrip('/')}/{self.uid}-{uuid.uuid4().hex[:8]}"
            return
        if not _is_here(spark):
            raise ConfigError(f"Spark runs on {_place_of(spark)}, and its executors see no temporary folder of this machine; set workspace "
                              "to a folder or URL that all of them see, e.g. workspace='hdfs:///user/me/sparkring'.")
        folder = tempfile.mkdtemp(prefix="sparkring-")
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class TorchClassifier(TorchEstimator):
    """Trains a network to predict a class: text, boolean, or whole numbers, of which there are at most 100."""

    _classes = True


class TorchRegressor(TorchEstimator):
    """Trains a network to predict a number."""

    _classes = False


def _is_here(spark: SparkSession) -> bool:
    """Whether Spark reads and writes this machine's own folders, and no other machine takes part."""
    return is_local(master_of(spark)) and (not is_connect(spark) or _server_of(spark) in _THIS_HOST)


def _place_of(spark: SparkSession) -> str:
    return f"{master_of(spark)} behind {_server_of(spark)}" if is_connect(spark) else master_of(spark)


def _server_of(spark: Any) -> str:
    return str(spark.client.host)


@contextmanager
def _view(rows: DataFrame) -> Iterator[str]:
    """The rows under a name of their own in their session."""
    name = f"sparkring_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        rows.sparkSession.catalog.dropTempView(name)
