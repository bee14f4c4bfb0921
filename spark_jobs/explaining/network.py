"""The network on the driver: each row's loss, and a figure that tells how right its prediction is.

    task         loss of a row                                       score of a row
    binary       cross entropy of the label, nats                    the logit: rows are ranked by it
    multiclass   the same                                            1 if the likeliest class is wrong, else 0
    regression   squared error, in the label's unit squared          absolute error, in the label's unit
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sparkring.models.inputs import CATEGORICAL, NUMERIC
from sparkring.pipelines.training.job.model_files import ModelCard
from sparkring.spark_jobs.explaining.sample import Rows

Values = NDArray[np.float64]


class Judged(NamedTuple):
    """Rows as the network predicts them."""

    losses: Values
    """(rows,)"""
    scores: Values
    """(rows,)"""


class Network:
    """A network in evaluation mode."""

    def __init__(self, model: nn.Module, card: ModelCard, *, batch_rows: int) -> None:
        """Take the network that ``card`` describes; a forward pass has at most ``batch_rows`` rows."""
        self._model, self._card, self._batch_rows = model, card, batch_rows
        self._dtype = next(model.parameters()).dtype

    @property
    def multiplied(self) -> int:
        """About how often it multiplies for a row: once by each weight, but for those that are looked up."""
        return sum(weight.numel() for module in self._model.modules() if not isinstance(module, nn.Embedding)
                   for weight in module.parameters(recurse=False))

    def judge(self, rows: Rows) -> Judged:
        """Each row's loss and score."""
        parts = [self._judge(rows[start:start + self._batch_rows]) for start in range(0, len(rows), self._batch_rows)]
        losses, scores = (torch.cat(each).numpy() for each in zip(*parts, strict=True))
        return Judged(losses, scores)

    def _judge(self, rows: Rows) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            inputs = {NUMERIC: torch.from_numpy(rows.numeric).to(self._dtype), CATEGORICAL: torch.from_numpy(rows.ids)}
            return _judged(self._model(**inputs).double(), torch.from_numpy(rows.labels), self._card)


def _judged(logits: Tensor, labels: Tensor, card: ModelCard) -> tuple[Tensor, Tensor]:
    if card.task == "binary":
        return nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none"), logits
    if card.task == "multiclass":
        return nn.functional.cross_entropy(logits, labels.long(), reduction="none"), (logits.argmax(dim=1) != labels).double()
    fitted = card.preprocessing.label
    assert fitted is not None
    errors = logits * fitted.std + fitted.mean - labels
    return errors.square(), errors.abs()
