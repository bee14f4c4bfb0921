"""The tasks of a model: predict a 0 / 1 label, one of several classes, a number, each next token, or masked tokens.

Inputs, loss and layers' shapes of each. The formulas are in ``models/losses.py``; how a task is evaluated is in ``evaluation/evaluate.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from sparkring.conf.schema import ModelConfig, Task, TrainConfig
from sparkring.models.build import Shapes
from sparkring.models.inputs import CATEGORICAL, IMAGE, NUMERIC, ROW_SEEDS, TOKENS
from sparkring.models.losses import cross_entropy_sum, error_sum, log_loss_sum, masked_token_loss_sum, next_token_loss_sum
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.data.dataset.row_schema import LABEL

LossSum = Callable[..., Tensor]
"""(outputs, labels[, weights of rows]) -> scalar: the loss, summed over rows."""
_INPUTS = {"tabular": (NUMERIC, CATEGORICAL), "image": (IMAGE,), "text": (TOKENS,)}
"""By the kind of a model."""


def input_tensors(model: ModelConfig) -> tuple[str, ...]:
    """The names of the tensors that a model takes: those of a batch, and the rows' seeds if the model has dropout."""
    return (*_INPUTS[model.kind], *([ROW_SEEDS] if model.dropout else []))


def label_tensor(task: Task) -> str:
    """The tensor of a batch that holds the labels; where each next token is predicted, these are the tokens."""
    return TOKENS if task == "next_token" else LABEL


def loss_of(task: Task, preprocessing: Preprocessing, train: TrainConfig) -> LossSum:
    """The loss of a task. Only regression has a choice of losses; rows of tokens have no weights."""
    if task == "binary":
        return log_loss_sum
    if task == "multiclass":
        return cross_entropy_sum
    if task == "regression":
        return partial(error_sum, loss=train.loss, huber_delta=train.huber_delta)
    assert preprocessing.tokens is not None
    return partial(next_token_loss_sum if task == "next_token" else masked_token_loss_sum, pad_id=preprocessing.tokens.pad_id)


def shapes_of(task: Task, preprocessing: Preprocessing) -> Shapes:
    """The shapes of rows that a network depends on."""
    image, tokens = preprocessing.image, preprocessing.tokens
    return Shapes(
        num_numeric=len(preprocessing.numeric_columns), cardinalities=preprocessing.cardinalities(),
        image=(image.channels, image.height, image.width) if image else None,
        length=tokens.length if tokens else 0, vocabulary=tokens.vocabulary if tokens else 0,
        pad_id=tokens.pad_id if tokens else None,
        masked=task == "masked_tokens",
        num_outputs=len(preprocessing.classes) if task == "multiclass" else 1)
