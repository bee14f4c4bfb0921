"""The part of the file that torch writes: a trained network between the encoding of its inputs and the answers of its task.

    numbers (B, N), ids (B, I) -> TableEncoder -+
    pixels (B, H, W[, C])      -> PixelScaler  -+-> network -> logits -> answers
    tokens (B, T)              ----------------+

``TableEncoder`` computes in float64 what ``spark_jobs/etl/encoding/table_features.py`` computes in Spark, operation by operation.
Shapes: B rows, N numbers of the source, I ids that are looked up or given, F numeric inputs of the network, C ids of it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparkring.conf.schema import Task
from sparkring.models.inputs import CATEGORICAL, IMAGE, NUMERIC, TOKENS
from sparkring.models.losses import widened
from sparkring.pipelines.data.dataset.preprocessing import BucketFeature, ImageFeature, NumericFeature, Preprocessing
from sparkring.pipelines.training.job.model_files import ModelCard

NUMBERS, IDS = "numbers", "ids"


class NumberEncoder(nn.Module):
    """Fills and scales numbers."""

    def __init__(self, features: tuple[NumericFeature, ...], columns: tuple[str, ...]) -> None:
        """Take the fitted figures.

        Args:
            features: The features, in the order in which the network takes them.
            columns: The N numbers of the source.
        """
        super().__init__()
        self.places = [columns.index(feature.column) for feature in features]
        self.flagged = [place for place, feature in enumerate(features) if feature.indicator]
        self.any_logs = any(feature.scale == "log1p" for feature in features)
        logs = torch.tensor([feature.scale == "log1p" for feature in features])
        bounds = [_bounds(feature) for feature in features]
        for name, figures in (("least", [least for least, _ in bounds]), ("most", [most for _, most in bounds]),
                              ("fill", [feature.filled_with for feature in features]),
                              ("centre", [feature.centre for feature in features]), ("spread", [feature.spread for feature in features])):
            self.register_buffer(name, torch.tensor(figures, dtype=torch.float64))
        self.register_buffer("logs", logs)

    def forward(self, numbers_BN: Tensor) -> Tensor:
        """(B, F) float32: the scaled numbers, then the indicators of missing ones."""
        raw_BF = numbers_BN[:, self.places]
        known = (raw_BF >= self.least) & (raw_BF <= self.most)  # false for NaN
        x = torch.where(known, raw_BF, self.fill)
        if self.any_logs:
            x = torch.where(self.logs, _log1p(x), x)
        scaled = ((x - self.centre) / self.spread).float()
        return torch.cat([scaled, (~known[:, self.flagged]).float()], dim=1) if self.flagged else scaled


class BucketEncoder(nn.Module):
    """1 + the number of edges at or below a number; 0 if it is not finite."""

    def __init__(self, feature: BucketFeature, place: int) -> None:
        super().__init__()
        self.place = place
        self.register_buffer("edges", torch.tensor(feature.edges, dtype=torch.float64))

    def forward(self, numbers_BN: Tensor) -> Tensor:
        """(B, 1) int64."""
        value = numbers_BN[:, self.place:self.place + 1]
        bucket = 1 + (value >= self.edges).long().sum(dim=1, keepdim=True)
        return torch.where(value.abs() < math.inf, bucket, 0)


class TableEncoder(nn.Module):
    """From the numbers and ids of a table's rows to the network's inputs."""

    def __init__(self, fitted: Preprocessing, columns: tuple[str, ...]) -> None:
        """Take the fitted preprocessing; ``columns`` are the N numbers of the source."""
        super().__init__()
        self.numbers = NumberEncoder(fitted.numeric, columns) if fitted.numeric else None
        self.buckets = nn.ModuleList(BucketEncoder(feature, columns.index(feature.of)) for feature in fitted.buckets)
        self.looked_up = len(fitted.categorical)
        self.takes = (*([NUMBERS] if columns else []), *([IDS] if fitted.categorical or fitted.hashed else []))
        """Names of the tensors that it takes, in order."""

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        """Return ``numeric`` (B, F) float32 and ``categorical`` (B, C) int64."""
        given = dict(zip(self.takes, tensors, strict=True))
        rows = tensors[0].shape[0]
        numbers = given[NUMBERS] if NUMBERS in given else torch.empty((rows, 0), dtype=torch.float64)
        ids = given[IDS] if IDS in given else torch.empty((rows, 0), dtype=torch.int64)
        numeric = self.numbers(numbers) if self.numbers is not None else numbers[:, :0].float()
        buckets = [bucket(numbers) for bucket in self.buckets]
        categorical = torch.cat([ids[:, :self.looked_up], *buckets, ids[:, self.looked_up:]], dim=1) if buckets else ids
        return {NUMERIC: numeric, CATEGORICAL: categorical}


class PixelScaler(nn.Module):
    """(pixel / 255 - mean) / std, channels first, as ``pipelines/data/loading/assemble.py`` computes it."""

    def __init__(self, image: ImageFeature) -> None:
        super().__init__()
        self.takes = (IMAGE,)
        scale, shift = ([1 / (255 * std) for std in image.std], [-mean / std for mean, std in zip(image.mean, image.std, strict=True)])
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float32)[:, None, None])
        self.register_buffer("shift", torch.tensor(shift, dtype=torch.float32)[:, None, None])

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """Return ``image`` (B, C, H, W) float32, of pixels (B, H, W) or (B, H, W, C)."""
        channels_first = pixels[:, None] if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2)
        return {IMAGE: channels_first.float() * self.scale + self.shift}


class TokenInput(nn.Module):
    """Tokens need no encoding."""

    takes = (TOKENS,)

    def forward(self, tokens_BT: Tensor) -> dict[str, Tensor]:
        """Return the tokens by name."""
        return {TOKENS: tokens_BT}


class AnsweringNetwork(nn.Module):
    """A network behind the encoding of its inputs, which answers its task."""

    def __init__(self, network: nn.Module, encoder: TableEncoder | PixelScaler | TokenInput, card: ModelCard) -> None:
        super().__init__()
        self.network, self.encoder, self.task = network, encoder, card.task
        self.dtype = next(network.parameters()).dtype
        self.pad_id = card.preprocessing.tokens.pad_id if card.preprocessing.tokens else 0

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the answers to what the encoder takes."""
        return self.answer(self.encoder(*tensors))

    def answer(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Return the answers to the network's own inputs."""
        logits = self.network(**{name: tensor.to(self.dtype) if tensor.is_floating_point() else tensor for name, tensor in inputs.items()})
        return answers(self.task, logits, inputs, pad_id=self.pad_id)


def encoder_of(card: ModelCard, numbers: tuple[str, ...]) -> TableEncoder | PixelScaler | TokenInput:
    """The encoding in front of a model; ``numbers`` names the source's columns of a table that are numbers."""
    if card.model.kind == "tabular":
        return TableEncoder(card.preprocessing, numbers)
    if card.model.kind == "image":
        assert card.preprocessing.image is not None
        return PixelScaler(card.preprocessing.image)
    return TokenInput()


def answers(task: Task, logits: Tensor, inputs: dict[str, Tensor], *, pad_id: int) -> tuple[Tensor, ...]:
    """The file's outputs in their order (``signature.outputs_of``); of several classes, the number of the likeliest comes first."""
    match task:
        case "binary":
            return (torch.sigmoid(logits.double()),)
        case "multiclass":
            probabilities = torch.softmax(logits.double(), dim=1)
            best, number = probabilities.max(dim=1)
            return number, best, probabilities
        case "next_token":
            return logits, *_token_answers(widened(logits), inputs[TOKENS], pad_id=pad_id)


def _token_answers(logits_BTV: Tensor, tokens_BT: Tensor, *, pad_id: int) -> tuple[Tensor, ...]:
    """The cost of each row, its predicted tokens, and those that are right, as ``models/losses.py`` defines them.

    Written without padding a row to its own length again: torch 2.15 cannot export that with rows of any length.
    """
    targets = tokens_BT[:, 1:]
    counted = targets != pad_id
    nats = -functional.log_softmax(logits_BTV[:, :-1], dim=2).gather(2, targets[:, :, None]).squeeze(2)
    right = (logits_BTV[:, :-1].argmax(dim=2) == targets) & counted
    return ((nats.double() * counted).sum(dim=1), counted.sum(dim=1, dtype=torch.int32), right.sum(dim=1, dtype=torch.int32))


def _bounds(feature: NumericFeature) -> tuple[float, float]:
    """The smallest and the largest number that counts as one."""
    least, most = feature.least_and_most
    return (math.nextafter(-1.0, 0.0) if feature.scale == "log1p" else least), most


def _log1p(x: Tensor) -> Tensor:
    """ln(1 + x), exact to a few units in the last place, which ln of a rounded sum is not. ONNX has no such operation.

    Source: Goldberg, "What every computer scientist should know about floating-point arithmetic", 1991, theorem 4.
    """
    u = 1 + x
    return torch.where(u == 1, x, torch.log(u) * (x / (u - 1)))
