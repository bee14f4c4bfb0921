"""The part of the file that torch writes: the encoding of the inputs, a trained network, and the answers of its task.

    raw inputs -> encoder -> network -> logits -> answers

Shapes: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparkring.models.inputs import TOKENS
from sparkring.models.losses import widened
from sparkring.pipelines.training.job.model_files import ModelCard
from sparkring.spark_jobs.exporting.encoders import Encoder


class AnsweringNetwork(nn.Module):
    """A network behind the encoding of its inputs, which answers its task."""

    def __init__(self, network: nn.Module, encoder: Encoder, card: ModelCard) -> None:
        """Put them together; nothing is copied."""
        super().__init__()
        self.network, self.encoder, self.card = network, encoder, card

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the answers to what the encoder takes."""
        return answers(self.network, self.encoder(*tensors), self.card)


def answers(network: nn.Module, inputs: dict[str, Tensor], card: ModelCard) -> tuple[Tensor, ...]:
    """The outputs of the file in their order (``signature.outputs_of``); the number of the likeliest class stands for its name.

    Args:
        network: In evaluation mode.
        inputs: The network's own inputs, encoded.
        card: Of the network.
    """
    dtype = next(network.parameters()).dtype
    logits = network(**{name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in inputs.items()})
    match card.task:
        case "binary":
            return (torch.sigmoid(logits.double()),)
        case "multiclass":
            probabilities = torch.softmax(logits.double(), dim=1)
            best, number = probabilities.max(dim=1)
            return number, best, probabilities
        case "regression":
            label = card.preprocessing.label
            assert label is not None
            return (logits.double() * label.std + label.mean,)
        case "next_token" | "masked_tokens":
            assert card.preprocessing.tokens is not None
            return logits, *_costs(widened(logits), inputs[TOKENS], pad_id=card.preprocessing.tokens.pad_id)


def _costs(logits_BTV: Tensor, tokens_BT: Tensor, *, pad_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """(B,) each: the nats of a row, its predicted tokens, and those that are right, as ``models/losses.py`` defines them.

    Written without the padding to the row's own length that is there: torch 2.15 cannot export that for rows of any length.
    """
    targets = tokens_BT[:, 1:]
    counted = targets != pad_id
    nats = -functional.log_softmax(logits_BTV[:, :-1], dim=2).gather(2, targets[:, :, None]).squeeze(2)
    right = (logits_BTV[:, :-1].argmax(dim=2) == targets) & counted
    return (nats.double() * counted).sum(dim=1), counted.sum(dim=1, dtype=torch.int32), right.sum(dim=1, dtype=torch.int32)
