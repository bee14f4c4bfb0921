"""An exported file in Spark's Python workers: ``sparkring score --set score.engine=onnx``.

    columns of a batch (pandas)          the file's inputs               answers (pandas)
      raw rows: what the file takes   ->   as ``predictor.py`` says   ->   what ``scoring/predict.py`` says of the task
      encoded rows: worked out backwards (``source_arrays.py``)

One of ``scoring``'s models: only what goes to the workers, and what runs there, differs. It runs on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column

from sparkring.errors import ConfigError
from sparkring.extras import extras_named
from sparkring.models.inputs import CATEGORICAL, NUMERIC
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.job.model_files import ModelCard
from sparkring.spark_jobs.exporting.place import FILE, FOLDER
from sparkring.spark_jobs.exporting.raw_columns import raw_columns
from sparkring.spark_jobs.exporting.signature import Signature
from sparkring.spark_jobs.exporting.source_arrays import source_arrays
from sparkring.spark_jobs.scoring.columns import NATS, PREDICTED, PREDICTION, PROBABILITIES, PROBABILITY, RIGHT
from sparkring.spark_jobs.scoring.network import Answers, Shipped, matrix, normalised
from sparkring.spark_jobs.scoring.predict import Model

if TYPE_CHECKING:
    from sparkring.spark_jobs.exporting.predictor import OnnxPredictor


def model_of(run_url: str, engine: Literal["torch", "onnx"]) -> Model:
    """Read the model of a run, for the engine that is to run it.

    Raises:
        ConfigError: the run has no trained model; or no file was exported from it.
        CheckpointDamaged: card or weights are not what was committed.
        ExportRefused: ONNX Runtime cannot load the file.
        EnvironmentProblem: onnxruntime is not installed.
    """
    model = Model.of(run_url)
    return ExportedModel.beside(model, run_url) if engine == "onnx" else model


@dataclass(frozen=True)
class ExportedModel(Model):
    """A trained network that ONNX Runtime runs."""

    file: bytes
    signature: Signature

    @classmethod
    def beside(cls, model: Model, run_url: str) -> ExportedModel:
        """Read the file that was exported from ``model``, the one of the run."""
        store, card = open_store(f"{run_url}/{FOLDER}"), model.card
        try:
            file = store.read(FILE)
        except FileNotFoundError:
            raise ConfigError(f"score.engine is onnx, and there is no {store.path(FILE)}; run `sparkring export` with this config "
                              "first.") from None
        with extras_named():
            from sparkring.spark_jobs.exporting.predictor import OnnxPredictor

        signature = OnnxPredictor(file).signature
        if signature.weights_sha256 != card.weights_sha256:
            raise ConfigError(f"{store.path(FILE)} was exported from the weights {signature.weights_sha256[:16]}, and the run's model has "
                              f"{card.weights_sha256[:16]}; run `sparkring export` with this config again.")
        return cls(card, model.weights, file, signature)

    def raw_inputs(self) -> list[Column]:
        """What the workers get of a raw row: of one of a table, the columns that the file takes."""
        if self.card.model.kind != "tabular":
            return super().raw_inputs()
        # As bytes: a text of Spark may hold bytes that are no characters, which pandas would refuse.
        return [column.cast("binary") if each.kind == "text" else column
                for each, column in zip(self.signature.inputs, raw_columns(self.signature, self.card.preprocessing), strict=True)]

    def shipped(self, *, raw: bool, batch_rows: int) -> Shipped:
        """The file on its way to the workers."""
        return ShippedFile(card_json=self.card.model_dump_json(), key=self.key(raw=raw), raw=raw, batch_rows=batch_rows, file=self.file)


@dataclass(frozen=True)
class ShippedFile(Shipped):
    """A network for ONNX Runtime."""

    file: bytes

    def load(self, device: str) -> FileInWorker:
        """Load the file, for the CPU whatever the ``device``."""
        with extras_named():
            from sparkring.spark_jobs.exporting.predictor import OnnxPredictor

        return FileInWorker(OnnxPredictor(self.file), ModelCard.model_validate_json(self.card_json), self.raw)


@dataclass(frozen=True)
class FileInWorker:
    """A file that a worker has loaded."""

    predictor: OnnxPredictor
    card: ModelCard
    raw: bool

    def answer(self, columns: Sequence[pd.Series]) -> Answers:
        """The answers to the rows of one forward pass."""
        if self.card.model.kind != "tabular":
            return _answers(self.predictor(self._cells(columns[0])), self.card)
        return _answers(self.predictor.run(self._raw(columns) if self.raw else self._encoded(columns)), self.card)

    def _cells(self, column: pd.Series) -> pa.RecordBatch:
        """Images or rows of tokens, as the dataset stores them."""
        cells = normalised(list(column), self.card) if self.raw else list(column)
        return pa.RecordBatch.from_pydict({self.predictor.signature.inputs[0].name: pa.array(cells, pa.binary())})

    def _raw(self, columns: Sequence[pd.Series]) -> dict[str, NDArray[Any]]:
        inputs = self.predictor.signature.inputs
        return {each.name: np.array([each.missing if text is None else text.decode(errors="replace") for text in column], object)
                if each.kind == "text" else column.to_numpy(np.int64 if each.kind == "id" else np.float64)
                for each, column in zip(inputs, columns, strict=True)}

    def _encoded(self, columns: Sequence[pd.Series]) -> dict[str, NDArray[Any]]:
        fitted, rows, numbers = self.card.preprocessing, len(columns[0]), len(self.card.preprocessing.numeric_columns)
        values = [column.to_numpy() for column in columns]
        return source_arrays({NUMERIC: matrix(values[:numbers], rows, np.float32), CATEGORICAL: matrix(values[numbers:], rows, np.int64)},
                             self.predictor.signature, fitted)


def _answers(found: dict[str, NDArray[Any]], card: ModelCard) -> Answers:
    """The file's answers as a worker gives them: classes by their numbers."""
    match card.task:
        case "multiclass":
            probabilities = found[PROBABILITIES]
            return {PREDICTION: probabilities.argmax(axis=1).astype(np.int32), PROBABILITY: found[PROBABILITY],
                    PROBABILITIES: probabilities}
        case "next_token" | "masked_tokens":
            return {NATS: found[NATS], PREDICTED: found[PREDICTED].astype(np.int32), RIGHT: found[RIGHT].astype(np.int32)}
        case _:
            return found
