"""A trained model for tables as MLflow's ``pyfunc``: raw rows in, predictions out, as ``sparkring score`` gives them.

    mlflow.pyfunc.load_model("runs:/<id>/model").predict(rows)

MLflow imports this module by its name and calls ``_load_pyfunc``. Nothing is pickled: the model's folder holds our card and safetensors.
Imports neither mlflow nor pyspark. Needs sparkring, torch and pandas, and for a network of your own the module that registers it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sparkring.models.inputs import CATEGORICAL, NUMERIC
from sparkring.pipelines.data.dataset.pandas_rows import encode_rows
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.training.job.model_files import ModelCard, load_model
from sparkring.spark_jobs.scoring.columns import DECIDED_AT

if TYPE_CHECKING:
    from torch import Tensor, nn

BATCH_ROWS = 8192
"""The most rows of a forward pass."""


class RawRowModel:
    """Predicts raw rows."""

    def __init__(self, model: nn.Module, card: ModelCard) -> None:
        self._model, self._card = model, card
        self._dtype = next(model.parameters()).dtype

    def predict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Predict rows.

        Args:
            rows: The columns that the model's features are made of, as the query of its config yields them; categories as text.
        Returns:
            One row each, with the index of ``rows``: ``probability`` (of label 1); or ``prediction``, ``probability`` (of that class)
            and ``probabilities`` (a list, of each class).
        Raises:
            SourceError: a column is missing or of a wrong type.
        """
        numeric, ids = encode_rows(rows, self._card.preprocessing)
        parts = [self._logits(numeric[first:first + BATCH_ROWS], ids[first:first + BATCH_ROWS])
                 for first in range(0, max(len(rows), 1), BATCH_ROWS)]
        return _predictions(np.concatenate(parts), self._card, rows.index)

    def _logits(self, numeric_BF: NDArray[np.float32], ids_BC: NDArray[np.int64]) -> NDArray[np.float64]:
        import torch

        with torch.inference_mode():
            inputs: dict[str, Tensor] = {NUMERIC: torch.from_numpy(numeric_BF).to(self._dtype), CATEGORICAL: torch.from_numpy(ids_BC)}
            logits: Tensor = self._model(**inputs)
            return logits.double().numpy()


def _predictions(logits: NDArray[np.float64], card: ModelCard, index: pd.Index[Any]) -> pd.DataFrame:
    """The task's columns; ``scoring/predict.py`` computes the same in Spark."""
    import torch

    if card.task == "binary":
        probability = torch.sigmoid(torch.from_numpy(logits)).numpy()
        return pd.DataFrame({"prediction": (probability >= DECIDED_AT).astype(np.int32), "probability": probability}, index=index)
    label = card.preprocessing.label
    if label is not None:
        return pd.DataFrame({"prediction": logits * label.std + label.mean}, index=index)
    probabilities = torch.softmax(torch.from_numpy(logits), dim=1).numpy()
    best = probabilities.argmax(axis=1)
    return pd.DataFrame({"prediction": classes_of(card.preprocessing)[best], "probability": probabilities.max(axis=1),
                         "probabilities": probabilities.tolist()}, index=index)


def classes_of(preprocessing: Preprocessing) -> NDArray[np.generic]:
    """The classes in the type that the label has in the source."""
    if preprocessing.class_type == "string":
        return np.array(preprocessing.classes, dtype=object)
    return np.array([int(each) for each in preprocessing.classes], np.int64 if preprocessing.class_type == "bigint" else np.int32)


def _load_pyfunc(path: str) -> RawRowModel:
    """MLflow's entry: ``path`` is laid out like a run folder."""
    return RawRowModel(*load_model(path))
