"""``TorchModel``: a fitted network that adds its predictions to a DataFrame.

    prediction       double: the class's value, of a text its place in ``labels``; of a regression the number
    probability      vector: of each class, in the order of ``labels``
    rawPrediction    vector: the log-odds of two classes, else the logarithm of each probability
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.ml import Model as MLModel
from pyspark.ml.functions import array_to_vector
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from sparkring.errors import SourceError
from sparkring.estimator.columns import InputColumn, feature_columns, require_columns, require_kinds
from sparkring.estimator.files import TorchModelReader, TorchModelWriter
from sparkring.estimator.look import told
from sparkring.estimator.params import ColumnParams
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.inference.choose import Choices
from sparkring.spark_jobs.scoring.columns import PREDICTION, PROBABILITIES, PROBABILITY
from sparkring.spark_jobs.scoring.predict import Model, predict_with
from sparkring.spark_jobs.spark.frames import require_spark_frame

BATCH_ROWS = 8192
SMALLEST = 1e-300
"""A probability below it counts as this: a logarithm stays finite."""


class TorchModel(MLModel, ColumnParams, MLWritable, MLReadable["TorchModel"]):
    """A network that ``TorchClassifier`` or ``TorchRegressor`` has fitted."""

    def __init__(self, *, trained: Model, columns: tuple[InputColumn, ...], choices: Choices, run_url: str | None) -> None:
        super().__init__()
        self.trained, self.columns, self.choices, self.run_url = trained, columns, choices, run_url

    @property
    def labels(self) -> list[str]:
        """The classes as texts, in the order of ``probability``; none of a regression."""
        card = self.trained.card
        return ["0", "1"] if card.task == "binary" else list(card.preprocessing.classes)

    @property
    def validation(self) -> dict[str, float]:
        """Metrics on held-out rows of the fit, by which its best epoch was chosen."""
        return self.trained.card.validation

    def explain(self) -> str:
        """What became of each column in the fit, and why."""
        return told(self.choices)

    def write(self) -> TorchModelWriter:
        """A writer: ``save(path)``, or ``write().overwrite().save(path)``."""
        return TorchModelWriter(self)

    @classmethod
    def read(cls) -> TorchModelReader:
        """A reader: ``TorchModel.load(path)``."""
        return TorchModelReader(cls)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        what = "the DataFrame to transform"
        require_spark_frame(dataset, what=what)
        own = require_columns(dataset, [column.source for column in self.columns], what=what)
        columns = [column.model_copy(update={"source": own[column.source]}) for column in self.columns]
        require_kinds(dataset.schema, columns)
        added = dict(self._added())
        for name in added:
            if name.lower() in (other.lower() for other in dataset.columns):
                raise SourceError(f"{what} has a column {name} already, and the model adds one of that name; drop it, or set another name "
                                  "for the model's, e.g. with setPredictionCol.")
        kept = [f"__sparkring_{place}" for place in range(len(dataset.columns))]
        features = {column.source for column in columns}
        # By place: names of other columns may be alike.
        placed = dataset.toDF(*(name if name in features else new for name, new in zip(dataset.columns, kept, strict=True)))
        renamed = placed.select(*(named(name).alias(new) for name, new in zip(placed.columns, kept, strict=True)),
                                *feature_columns(placed.schema, columns))
        predicted = predict_with(renamed, self.trained, batch_rows=BATCH_ROWS)
        return predicted.select(*(sf.col(new).alias(name) for name, new in zip(dataset.columns, kept, strict=True)),
                                *(value.alias(name) for name, value in added.items()))

    def _added(self) -> Iterator[tuple[str, Column]]:
        """The columns that the model adds, by name."""
        task = self.trained.card.task
        if task != "regression":
            each = _of_two() if task == "binary" else sf.col(PROBABILITIES)
            if self.getRawPredictionCol():
                raw = _log_odds() if task == "binary" else sf.transform(each, lambda p: sf.log(sf.greatest(p, sf.lit(SMALLEST))))
                yield self.getRawPredictionCol(), array_to_vector(raw)
            if self.getProbabilityCol():
                yield self.getProbabilityCol(), array_to_vector(each)
        if self.getPredictionCol():
            yield self.getPredictionCol(), self._prediction()

    def _prediction(self) -> Column:
        preprocessing = self.trained.card.preprocessing
        if self.trained.card.task == "multiclass" and preprocessing.class_type == "string":
            return (sf.array_position(sf.array(*map(sf.lit, preprocessing.classes)), sf.col(PREDICTION)) - 1).cast("double")
        return sf.col(PREDICTION).cast("double")


def _of_two() -> Column:
    return sf.array(1 - sf.col(PROBABILITY), sf.col(PROBABILITY))


def _log_odds() -> Column:
    probability = sf.col(PROBABILITY)
    odds = sf.log(sf.greatest(probability, sf.lit(SMALLEST))) - sf.log(sf.greatest(1 - probability, sf.lit(SMALLEST)))
    return sf.array(-odds, odds)

