"""A trained network in Spark's Python workers: loaded once a worker, asked by batches of columns.

    columns of a batch (pandas)        inputs (tensors)                answers (pandas)
      numbers, scaled            ->      numeric (B, F)
      ids, or texts to look up   ->      categorical (B, C)      ->      what ``predict.ANSWERS`` says of the task
      files, tokens              ->      image, tokens (masked: and the labels, which the network leaves alone)

A worker outlives its tasks and keeps what it loaded. Runs on executors alone; Spark's side is ``predict.py`` and ``predict_split.py``.
The network travels as JSON and safetensors with the function: workers neither read the run folder nor unpickle anything from it.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pyspark import TaskContext

from sparkring.errors import SourceError
from sparkring.models.inputs import CATEGORICAL, NUMERIC
from sparkring.pipelines.data.dataset.row_schema import ROW_ID, TensorSpec
from sparkring.pipelines.training.job.model_files import ModelCard, model_from_bytes
from sparkring.pipelines.training.job.tasks import label_tensor
from sparkring.spark_jobs.etl.encoding.describe import describe_image, describe_tokens
from sparkring.spark_jobs.launch.gpus.visible import VARIABLE, named_gpus
from sparkring.spark_jobs.scoring.columns import NATS, PREDICTED, PREDICTION, PROBABILITIES, PROBABILITY, RIGHT

if TYPE_CHECKING:
    from torch import Tensor, nn

Answers = dict[str, NDArray[Any]]
KEPT = 4
"""Networks that a worker keeps, the latest ones."""
CACHED_ROWS = 2048
"""The most rows of a forward pass on a CPU, whose caches then hold what the layers hand on: 10,000 flights at once took 1.4 times as
long."""


class Loaded(Protocol):
    """A network in a worker's memory."""

    def answer(self, columns: Sequence[pd.Series]) -> Answers:
        """The answers to rows whose inputs fit in memory."""
        ...


@dataclass(frozen=True)
class Shipped(ABC):
    """A network on its way to the workers."""

    card_json: str
    key: str
    """The same for the same network: workers keep it under this name."""
    raw: bool
    """Whether categories come as texts, in UTF-8, and images as they were found; else as the dataset stores them."""
    batch_rows: int
    """The most rows that become inputs at once."""

    @abstractmethod
    def load(self, device: str) -> Loaded:
        """Build the network in a worker."""


@dataclass(frozen=True)
class ShippedWeights(Shipped):
    """A network for torch."""

    weights: bytes
    """As safetensors."""

    def load(self, device: str) -> Network:
        """Build the network around its weights."""
        return Network.load(self, device)


def answer(columns: Sequence[pd.Series], shipped: Shipped) -> Answers:
    """The network's answers to a batch of rows, in about equal parts.

    Args:
        columns: The inputs in the order of ``Model.raw_inputs``, or of ``predict.feature_columns`` for rows of a dataset version.
        shipped: The network.
    """
    network = _loaded(shipped, device_of_task())
    return _joined([network.answer([column.iloc[part] for column in columns]) for part in parts(len(columns[0]), shipped.batch_rows)])


def parts(rows: int, most: int) -> list[slice]:
    """Rows in about equal parts of at most ``most``; one empty part of no rows."""
    count = max(-(-rows // most), 1)
    return [slice(first, last) for first, last in pairwise(rows * place // count for place in range(count + 1))]


def _joined(answers: Sequence[Answers]) -> Answers:
    return {name: np.concatenate([each[name] for each in answers]) for name in answers[0]}


@dataclass(frozen=True)
class Network:
    """A network of torch in a worker's memory."""

    card: ModelCard
    model: nn.Module
    vocabularies: tuple[pd.Index | None, ...]
    """For each feature with ids: the texts by their id, from 1 on; None if the ids come as numbers."""
    raw: bool
    device: str

    @classmethod
    def load(cls, shipped: ShippedWeights, device: str) -> Network:
        """Build the network around its weights."""
        import torch

        torch.set_num_threads(1)  # a task has one core
        card = ModelCard.model_validate_json(shipped.card_json)
        features = card.preprocessing
        looked_up = [pd.Index([text.encode() for text in feature.vocabulary], dtype=object) for feature in features.categorical]
        others: list[None] = [None] * (len(features.with_ids) - (len(looked_up) if shipped.raw else 0))
        return cls(card, model_from_bytes(card, shipped.weights).to(device), (*(looked_up if shipped.raw else ()), *others), shipped.raw,
                   device)

    def answer(self, columns: Sequence[pd.Series]) -> Answers:
        """The answers to rows whose inputs fit in memory: on a CPU in passes that fit in its caches."""
        import torch

        dtype, rows = next(self.model.parameters()).dtype, len(columns[0])
        with torch.inference_mode():
            inputs = {name: tensor.to(self.device, dtype if tensor.is_floating_point() else tensor.dtype)
                      for name, tensor in self.inputs(columns).items()}
            passes = ({name: tensor[part] for name, tensor in inputs.items()}
                      for part in parts(rows, CACHED_ROWS if self.device == "cpu" else max(rows, 1)))
            return _joined([_answers(self.model(**each), each, self.card) for each in passes])

    def inputs(self, columns: Sequence[pd.Series]) -> dict[str, Tensor]:
        """The network's arguments."""
        import torch

        if self.card.model.kind == "tabular":
            num_numeric = len(self.card.preprocessing.numeric_columns)
            ids = [_ids(column, index) for column, index in zip(columns[num_numeric:], self.vocabularies, strict=True)]
            rows = len(columns[0])
            return {NUMERIC: torch.from_numpy(matrix([column.to_numpy() for column in columns[:num_numeric]], rows, np.float32)),
                    CATEGORICAL: torch.from_numpy(matrix(ids, rows, np.int64))}
        return self._decoded(*columns)

    def _decoded(self, cells: pd.Series, row_ids: pd.Series | None = None) -> dict[str, Tensor]:
        """Images or rows of tokens from what the dataset stores of them; masked tokens come with their rows' ids."""
        from sparkring.pipelines.data.loading.assemble import Assembler

        features, found = self.card.preprocessing, list(cells)
        if self.card.model.kind == "image":
            assert features.image is not None
            field, tensor = describe_image(features.image)
            tensors: tuple[TensorSpec, ...] = (tensor,)
            found = normalised(found, self.card) if self.raw else found
        else:
            assert features.tokens is not None
            field, tensors = describe_tokens(features.tokens)
        assembler = Assembler(specs=tensors, fields={field.name: field}, seed=0, augmented=False)
        rows: dict[str, Any] = {tensor.name: found for tensor in tensors}
        if row_ids is not None:
            rows[ROW_ID] = row_ids.to_numpy()
        return assembler.join([rows], epoch=0)


_LOADED: dict[tuple[str, str], Loaded] = {}
"""What this worker has loaded, by key and device."""


def _loaded(shipped: Shipped, device: str) -> Loaded:
    place = (shipped.key, device)
    if place not in _LOADED:
        if len(_LOADED) >= KEPT:
            del _LOADED[next(iter(_LOADED))]
        _LOADED[place] = shipped.load(device)
    return _LOADED[place]


def device_of_task() -> str:
    """The GPU that Spark assigned to this task, else the CPU."""
    context = TaskContext.get()
    gpus = context.resources().get("gpu") if context else None
    if gpus is None:
        return "cpu"
    import torch

    return device_of(gpus.addresses[0], os.environ.get(VARIABLE)) if torch.cuda.is_available() else "cpu"


def device_of(address: str, visible: str | None) -> str:
    """CUDA's name for the GPU at Spark's ``address``, in a process that sees the GPUs ``visible`` (all if None)."""
    seen = named_gpus(visible) if visible is not None else ()
    return f"cuda:{seen.index(address) if address in seen else int(address)}"


def _answers(logits: Tensor, inputs: dict[str, Tensor], card: ModelCard) -> Answers:
    """The task's answers.

    Computed in float64: a float32 sigmoid is exactly 1 from logit 17 on, which loses the logarithm of 1 minus the probability.
    """
    import torch

    if card.task == "binary":
        return {PROBABILITY: torch.sigmoid(logits.double()).cpu().numpy()}
    if card.task == "multiclass":
        probabilities = torch.softmax(logits.double(), dim=1)
        best, number = probabilities.max(dim=1)
        return {PREDICTION: number.int().cpu().numpy(), PROBABILITY: best.cpu().numpy(), PROBABILITIES: probabilities.cpu().numpy()}
    label = card.preprocessing.label
    if label is not None:
        return {PREDICTION: (logits.double() * label.std + label.mean).cpu().numpy()}
    from sparkring.models.losses import targets_of, token_hits, token_nats

    assert card.preprocessing.tokens is not None
    pad_id = card.preprocessing.tokens.pad_id
    targets = targets_of(card.task, inputs[label_tensor(card.task)], pad_id=pad_id)
    nats, counted = token_nats(logits, targets, pad_id=pad_id)
    right = token_hits(logits, targets, counted)
    return {NATS: nats.sum(dim=1, dtype=torch.float64).cpu().numpy(), PREDICTED: counted.sum(dim=1, dtype=torch.int32).cpu().numpy(),
            RIGHT: right.sum(dim=1, dtype=torch.int32).cpu().numpy()}


def _ids(column: pd.Series, vocabulary: pd.Index | None) -> NDArray[np.integer[Any]]:
    """Ids as they are, or those of texts; 0 for null and unknown ones."""
    return column.to_numpy() if vocabulary is None else vocabulary.get_indexer(pd.Index(column)) + 1


def matrix(columns: Sequence[NDArray[Any]], rows: int, dtype: type[np.generic]) -> NDArray[np.generic]:
    """(rows, columns); (rows, 0) from none."""
    matrix: NDArray[np.generic] = np.empty((rows, len(columns)), dtype)
    for place, values in enumerate(columns):
        matrix[:, place] = values
    return matrix


def normalised(files: Sequence[bytes | None], card: ModelCard) -> list[bytes]:
    """Image files as the dataset stores them."""
    import cv2

    from sparkring.spark_jobs.etl.encoding.images import config_of, tried

    cv2.setNumThreads(0)  # a task has one core
    assert card.preprocessing.image is not None
    config = config_of(card.preprocessing.image)
    done = []
    for file in files:
        image, problem = tried(file, config)
        if image is None:
            raise SourceError(f"an image in column {config.column} cannot be used: {problem}; repair it, or leave its row out.")
        done.append(image.data)
    return done
