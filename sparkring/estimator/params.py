"""The estimator's and the model's parameters, by Spark ML's names and rules: ``explainParams()`` prints them."""

from __future__ import annotations

import json
from typing import Any, Self

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasLabelCol, HasPredictionCol, HasProbabilityCol, HasRawPredictionCol, HasSeed, HasWeightCol


def _config(value: Any) -> dict[str, Any]:
    try:
        copied = json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise TypeError(f"config must hold plain keys and values, as YAML could: {error}") from None
    if not isinstance(copied, dict):
        raise TypeError(f"config must be a mapping such as {{'train': {{'precision': 'bf16'}}}}, found {type(value).__name__}")
    return copied


class ColumnParams(HasLabelCol, HasPredictionCol, HasProbabilityCol, HasRawPredictionCol):
    """Names of columns, of the estimator and of the model. An empty name for an added column leaves it out."""

    featuresCol: Param[str] = Param(
        Params._dummy(), "featuresCol", "the one features column, e.g. a vector; default: all columns but label and weight",
        typeConverter=TypeConverters.toString)
    featuresCols: Param[list[str]] = Param(
        Params._dummy(), "featuresCols", "the features columns; default: all columns but label and weight",
        typeConverter=TypeConverters.toListString)

    def getFeaturesCol(self) -> str:
        """The one features column."""
        return self.getOrDefault(self.featuresCol)

    def getFeaturesCols(self) -> list[str]:
        """The features columns."""
        return self.getOrDefault(self.featuresCols)

    def setPredictionCol(self, value: str) -> Self:
        """Set the name of the added column with the prediction, a double."""
        return self._set(predictionCol=value)

    def setProbabilityCol(self, value: str) -> Self:
        """Set the name of the added column with the probability of each class, a vector."""
        return self._set(probabilityCol=value)

    def setRawPredictionCol(self, value: str) -> Self:
        """Set the name of the added column with the log-odds (two classes) or log-probabilities, a vector."""
        return self._set(rawPredictionCol=value)


class TrainParams(ColumnParams, HasWeightCol, HasSeed):
    """How a model is trained."""

    numRanks: Param[int] = Param(
        Params._dummy(), "numRanks", "ranks that train at once, each in a slot of Spark's; default: all slots there are",
        typeConverter=TypeConverters.toInt)
    epochs: Param[int] = Param(
        Params._dummy(), "epochs", "most passes over the training rows; ends earlier where held-out rows stop improving",
        typeConverter=TypeConverters.toInt)
    batchRows: Param[int] = Param(
        Params._dummy(), "batchRows", "rows of one step over all ranks together; default: 32 to 1024, by the number of rows",
        typeConverter=TypeConverters.toInt)
    learningRate: Param[float] = Param(
        Params._dummy(), "learningRate", "peak learning rate of AdamW", typeConverter=TypeConverters.toFloat)
    hiddenSizes: Param[list[int]] = Param(
        Params._dummy(), "hiddenSizes", "widths of the hidden layers; of a network for images, its channels stage by stage",
        typeConverter=TypeConverters.toListInt)
    modelKind: Param[str] = Param(
        Params._dummy(), "modelKind", "tabular or image; default: image if a feature is binary", typeConverter=TypeConverters.toString)
    workspace: Param[str] = Param(
        Params._dummy(), "workspace", "folder or URL that keeps each fit's dataset, run and events; default on a local master: a temporary "
        "folder that goes with the fit", typeConverter=TypeConverters.toString)
    config: Param[dict[str, Any]] = Param(
        Params._dummy(), "config", "keys and values over what was found out, as in the YAML: e.g. {'train': {'precision': 'bf16'}}",
        typeConverter=_config)

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(epochs=10, learningRate=1e-3, seed=1, config={})

    def setLabelCol(self, value: str) -> Self:
        """Set the column to predict."""
        return self._set(labelCol=value)

    def setFeaturesCol(self, value: str) -> Self:
        """Set the one features column."""
        return self._set(featuresCol=value)

    def setFeaturesCols(self, value: list[str]) -> Self:
        """Set the features columns."""
        return self._set(featuresCols=value)

    def setWeightCol(self, value: str) -> Self:
        """Set the column with the weight of each row in training."""
        return self._set(weightCol=value)

    def setSeed(self, value: int) -> Self:
        """Set the seed of the initial weights and of the row order."""
        return self._set(seed=value)

    def getNumRanks(self) -> int:
        """Ranks that train at once."""
        return self.getOrDefault(self.numRanks)

    def setNumRanks(self, value: int) -> Self:
        """Set the number of ranks."""
        return self._set(numRanks=value)

    def getEpochs(self) -> int:
        """Most passes over the training rows."""
        return self.getOrDefault(self.epochs)

    def setEpochs(self, value: int) -> Self:
        """Set the most passes over the training rows."""
        return self._set(epochs=value)

    def getBatchRows(self) -> int:
        """Rows of one step over all ranks."""
        return self.getOrDefault(self.batchRows)

    def setBatchRows(self, value: int) -> Self:
        """Set the rows of one step over all ranks."""
        return self._set(batchRows=value)

    def getLearningRate(self) -> float:
        """Peak learning rate."""
        return self.getOrDefault(self.learningRate)

    def setLearningRate(self, value: float) -> Self:
        """Set the peak learning rate."""
        return self._set(learningRate=value)

    def getHiddenSizes(self) -> list[int]:
        """Widths of the hidden layers."""
        return self.getOrDefault(self.hiddenSizes)

    def setHiddenSizes(self, value: list[int]) -> Self:
        """Set the widths of the hidden layers."""
        return self._set(hiddenSizes=value)

    def getModelKind(self) -> str:
        """``tabular`` or ``image``."""
        return self.getOrDefault(self.modelKind)

    def setModelKind(self, value: str) -> Self:
        """Set the kind of network."""
        return self._set(modelKind=value)

    def getWorkspace(self) -> str:
        """The folder of all fits."""
        return self.getOrDefault(self.workspace)

    def setWorkspace(self, value: str) -> Self:
        """Set the folder of all fits."""
        return self._set(workspace=value)

    def getConfig(self) -> dict[str, Any]:
        """Keys and values over what was found out."""
        return self.getOrDefault(self.config)

    def setConfig(self, value: dict[str, Any]) -> Self:
        """Set keys and values over what was found out."""
        return self._set(config=value)
