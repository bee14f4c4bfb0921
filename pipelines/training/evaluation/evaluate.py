"""Exact metrics on held-out rows, over all ranks' rows at once; no average of averages.

    binary       every row's probability reaches rank 0 (16 bytes a row), which evaluates them all together
    multiclass   loss and hits are summed over rows and ranks, then divided once by the rows of the split
    regression   squared and absolute errors are summed over rows and ranks, then divided once (regression.py)
    next_token   nats and hits are summed over predicted tokens and ranks, then divided once by their number;
                 so they are of masked_tokens

``evaluate`` returns the metrics of each epoch, ``evaluate_fully`` all metrics that ``sparkring evaluate`` writes about a network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sparkring.conf.schema import TEXT_TASKS, TrainConfig
from sparkring.models.losses import targets_of, token_hits, token_nats
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.training.evaluation.regression import (
    ERROR_SUMS,
    NUM_SUMS,
    Floats,
    all_sums,
    error_figures,
    error_sums,
    regression_metrics,
)
from sparkring.pipelines.training.evaluation.totals import Metrics, class_metrics, mean_metrics, token_metrics
from sparkring.pipelines.training.job.tasks import loss_of

if TYPE_CHECKING:
    from sparkring.pipelines.training.evaluation.metrics import BinaryMetrics

Predictions = Iterable[tuple[Tensor, Tensor]]
"""(logits, labels) of this rank's rows, some rows at a time; each row is on one rank."""


@torch.no_grad()  # not inference_mode: Horovod may not touch inference tensors from its own thread
def evaluate(predictions: Predictions, communicator: Communicator, manifest: Manifest, train: TrainConfig) -> dict[str, float] | None:
    """Evaluate predictions for all rows of the validation split.

    Args:
        predictions: Predictions for this rank's rows.
        communicator: The ring; every rank calls this at the same time.
        manifest: Names the task.
        train: Names the loss of a regression.
    Returns:
        On rank 0 the metrics by name, ``loss`` first, and None on the others. Binary: ``loss``, ``auc``,
        ``average_precision``, ``calibration_error``. Multiclass: ``loss``, ``accuracy``. Regression: ``loss`` (that of training),
        ``rmse``, ``mae`` and, unless all labels are alike, ``r2``. Next token: ``loss`` (nats a token), ``accuracy``,
        ``bits_per_byte``; masked tokens: the first two.
    """
    if manifest.task == "binary":
        metrics = _binary(predictions, communicator)
        return None if metrics is None else {"loss": metrics.loss, "auc": metrics.auc, "average_precision": metrics.average_precision,
                                             "calibration_error": metrics.calibration_error}
    if manifest.task == "regression":
        return _errors(predictions, communicator, manifest, train)
    totals = torch.zeros(3, dtype=torch.float64)
    for logits, labels in predictions:
        totals += _token_totals(logits, labels, manifest) if manifest.task in TEXT_TASKS else _class_totals(logits, labels)
    nats, hits, count = communicator.sum(totals, name="evaluation.totals").tolist()
    if communicator.context.rank != 0:
        return None
    tokens = manifest.preprocessing.tokens
    found = (mean_metrics(nats=nats, hits=int(hits), count=int(count)) if tokens is None else
             token_metrics(nats=nats, hits=int(hits), count=int(count), tokens=tokens, split="validation"))
    return {name: value for name, value in found.items() if name != "rows"}


@torch.no_grad()
def evaluate_fully(predictions: Predictions, communicator: Communicator, manifest: Manifest, *, split: str) -> Metrics | None:
    """Evaluate predictions for all rows of a split.

    Args:
        predictions: Predictions for this rank's rows.
        communicator: The ring; every rank calls this at the same time.
        manifest: Names the task.
        split: Name of the split.
    Returns:
        On rank 0 the metrics, and None on the others: ``rows`` (of tokens the predicted ones), ``loss``, and by task the rest of
        ``BinaryMetrics``; ``accuracy`` and ``confusion`` (rows of each class, by the predicted class); ``accuracy`` and, of
        next tokens, ``bits_per_byte``; or, for a regression, those of ``RegressionMetrics``, which have no ``loss``.
    """
    if manifest.task == "binary":
        metrics = _binary(predictions, communicator)
        return None if metrics is None else metrics.model_dump(mode="json")
    if manifest.task == "regression":
        return _regression(predictions, communicator, manifest)
    classes = len(manifest.preprocessing.classes)
    totals, confusion = torch.zeros(3, dtype=torch.float64), torch.zeros(classes * classes, dtype=torch.float64)
    for logits, labels in predictions:
        if manifest.task in TEXT_TASKS:
            totals += _token_totals(logits, labels, manifest)
        else:
            totals += _class_totals(logits, labels)
            confusion += torch.bincount((labels * classes + logits.argmax(dim=1)).cpu(), minlength=classes * classes)
    everything = communicator.sum(torch.cat([totals, confusion]), name="evaluation.all_totals")
    if communicator.context.rank != 0:
        return None
    nats, hits, count = everything[:3].tolist()
    tokens = manifest.preprocessing.tokens
    if tokens is not None:
        return token_metrics(nats=nats, hits=int(hits), count=int(count), tokens=tokens, split=split)
    return class_metrics(nats=nats, confusion=everything[3:].long().view(classes, classes).tolist())


def _class_totals(logits: Tensor, labels: Tensor) -> Tensor:
    """(3,) loss, hits and rows."""
    loss = functional.cross_entropy(logits.double(), labels, reduction="sum")
    hits = (logits.argmax(dim=1) == labels).sum(dtype=torch.float64)
    return torch.stack([loss, hits, loss.new_tensor(len(labels))]).cpu()  # all three on the model's device, as stack requires


def _token_totals(logits: Tensor, labels: Tensor, manifest: Manifest) -> Tensor:
    """(3,) nats, hits and predicted tokens."""
    assert manifest.preprocessing.tokens is not None
    pad_id = manifest.preprocessing.tokens.pad_id
    targets = targets_of(manifest.task, labels, pad_id=pad_id)
    nats, counted = token_nats(logits, targets, pad_id=pad_id)
    hits = token_hits(logits, targets, counted)
    return torch.stack([nats.sum(dtype=torch.float64), hits.sum(), counted.sum()]).double().cpu()


def _errors(predictions: Predictions, communicator: Communicator, manifest: Manifest, train: TrainConfig) -> dict[str, float] | None:
    """The loss and the errors of a regression, on rank 0."""
    assert manifest.preprocessing.label is not None
    loss_sum = loss_of(manifest.task, manifest.preprocessing, train)
    totals = np.zeros(1 + ERROR_SUMS)
    for numbers, labels in predictions:
        totals += [float(loss_sum(numbers.double(), labels.double())), *error_sums(_array(numbers), _array(labels))]
    loss, *sums = communicator.sum(torch.from_numpy(totals), name="evaluation.errors").tolist()
    if communicator.context.rank != 0:
        return None
    found = error_figures(np.array(sums), manifest.preprocessing.label)
    return {"loss": loss / sums[0]} | {name: found[name] for name in ("rmse", "mae", "r2") if not math.isnan(found[name])}


def _regression(predictions: Predictions, communicator: Communicator, manifest: Manifest) -> Metrics | None:
    """The metrics of a regression, on rank 0."""
    assert manifest.preprocessing.label is not None
    totals = np.zeros(NUM_SUMS)
    for numbers, labels in predictions:
        totals += all_sums(_array(numbers), _array(labels))
    everything = communicator.sum(torch.from_numpy(totals), name="evaluation.all_errors")
    if communicator.context.rank != 0:
        return None
    return regression_metrics(everything.numpy(), manifest.preprocessing.label).model_dump(mode="json")


def _array(tensor: Tensor) -> Floats:
    return tensor.double().cpu().numpy()


def _binary(predictions: Predictions, communicator: Communicator) -> BinaryMetrics | None:
    """The metrics of a binary task, on rank 0."""
    parts: list[Tensor] = []
    for logits, labels in predictions:
        probability = torch.sigmoid(logits.double())  # float32 would round a confident one to 1
        parts.append(torch.stack([probability, labels.double()], dim=1).cpu())
    mine = torch.cat(parts) if parts else torch.empty((0, 2), dtype=torch.float64)
    everyone = communicator.gather(mine, name="evaluation.predictions")
    if communicator.context.rank != 0:
        return None
    from sparkring.pipelines.training.evaluation.metrics import binary_metrics  # scikit-learn takes seconds to load: only where it is used

    return binary_metrics(everyone[:, 0].numpy(), everyone[:, 1].numpy())
