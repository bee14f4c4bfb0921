"""The encoding of raw inputs as torch modules, so that torch writes it into the file in front of the network.

    numbers (B, N) float64, ids (B, I) int64 -> TableEncoder -> numeric (B, F) float32, categorical (B, C) int64
    pixels (B, H, W[, C]) uint8              -> PixelEncoder -> image (B, C, H, W) float32
    tokens (B, T) int64                      -> TokenEncoder -> tokens

``TableEncoder`` computes in float64 what ``spark_jobs/etl/encoding/table_features.py`` computes in Spark, operation by operation. Torch
has no texts: the ids of texts come from ONNX's own operations (``graph.py``).
Shapes: B rows, N numbers of the source, I ids of texts and hashes, F numeric inputs of the network, C ids of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparkring.models.inputs import CATEGORICAL, IMAGE, NUMERIC, TOKENS
from sparkring.pipelines.data.dataset.preprocessing import BucketFeature, ImageFeature, NumericFeature, Preprocessing
from sparkring.pipelines.training.job.model_files import ModelCard

NUMBERS, IDS = "numbers", "ids"


class NumberEncoder(nn.Module):
    """Fills and scales numbers."""

    least: Tensor
    most: Tensor
    fill: Tensor
    centre: Tensor
    spread: Tensor
    logs: Tensor

    def __init__(self, features: Sequence[NumericFeature], columns: Sequence[str]) -> None:
        """Take the fitted figures.

        Args:
            features: The features, in the order in which the network takes them.
            columns: Names of the N numbers.
        """
        super().__init__()
        self.places = [columns.index(feature.column) for feature in features]
        self.flagged = [place for place, feature in enumerate(features) if feature.indicator]
        self.any_logs = any(feature.scale == "log1p" for feature in features)
        figures = [(*_bounds(feature), feature.filled_with, feature.centre, feature.spread) for feature in features]
        for name, column in zip(("least", "most", "fill", "centre", "spread"), zip(*figures, strict=True), strict=True):
            self.register_buffer(name, torch.tensor(column, dtype=torch.float64))
        self.register_buffer("logs", torch.tensor([feature.scale == "log1p" for feature in features]))

    def forward(self, numbers_BN: Tensor) -> Tensor:
        """(B, F) float32: the scaled numbers, then the indicators of missing ones."""
        raw_BF = numbers_BN[:, self.places]
        known_BF = (raw_BF >= self.least) & (raw_BF <= self.most)  # false for NaN
        x_BF = torch.where(known_BF, raw_BF, self.fill)
        if self.any_logs:
            x_BF = torch.where(self.logs, _log1p(x_BF), x_BF)
        scaled_BF = ((x_BF - self.centre) / self.spread).float()
        return torch.cat([scaled_BF, (~known_BF[:, self.flagged]).float()], dim=1) if self.flagged else scaled_BF


class BucketEncoder(nn.Module):
    """1 + the number of edges at or below a number; 0 if it is not finite."""

    edges: Tensor

    def __init__(self, feature: BucketFeature, place: int) -> None:
        """Take the fitted edges, and the place of the number among the N."""
        super().__init__()
        self.place = place
        self.register_buffer("edges", torch.tensor(feature.edges, dtype=torch.float64))

    def forward(self, numbers_BN: Tensor) -> Tensor:
        """(B, 1) int64."""
        value_B1 = numbers_BN[:, self.place:self.place + 1]
        bucket_B1 = 1 + (value_B1 >= self.edges).long().sum(dim=1, keepdim=True)
        return torch.where(value_B1.abs() < math.inf, bucket_B1, 0)


class TableEncoder(nn.Module):
    """From the numbers and ids of a table's rows to the network's inputs."""

    def __init__(self, fitted: Preprocessing, columns: Sequence[str]) -> None:
        """Take the fitted preprocessing; ``columns`` names the N numbers."""
        super().__init__()
        self.numbers = NumberEncoder(fitted.numeric, columns) if fitted.numeric else None
        self.buckets = nn.ModuleList(BucketEncoder(feature, columns.index(feature.of)) for feature in fitted.buckets)
        self.num_texts = len(fitted.categorical)
        self.takes = (*([NUMBERS] if columns else []), *([IDS] if fitted.categorical or fitted.hashed else []))
        """Names of the tensors that it takes, in order."""

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        """Return ``numeric`` (B, F) float32 and ``categorical`` (B, C) int64."""
        given, rows = dict(zip(self.takes, tensors, strict=True)), tensors[0].shape[0]
        numbers_BN = given[NUMBERS] if NUMBERS in given else torch.empty((rows, 0), dtype=torch.float64)
        ids_BI = given[IDS] if IDS in given else torch.empty((rows, 0), dtype=torch.int64)
        numeric_BF = self.numbers(numbers_BN) if self.numbers is not None else numbers_BN[:, :0].float()
        buckets = [bucket(numbers_BN) for bucket in self.buckets]
        categorical_BC = torch.cat([ids_BI[:, :self.num_texts], *buckets, ids_BI[:, self.num_texts:]], dim=1)
        return {NUMERIC: numeric_BF, CATEGORICAL: categorical_BC}


class PixelEncoder(nn.Module):
    """(pixel / 255 - mean) / std, channels first, as ``pipelines/data/loading/assemble.py`` computes it."""

    takes = (IMAGE,)
    scale: Tensor
    shift: Tensor

    def __init__(self, image: ImageFeature) -> None:
        """Take the fitted means and deviations."""
        super().__init__()
        scale = [1 / (255 * std) for std in image.std]
        shift = [-mean / std for mean, std in zip(image.mean, image.std, strict=True)]
        for name, figures in (("scale", scale), ("shift", shift)):
            self.register_buffer(name, torch.tensor(figures, dtype=torch.float32)[:, None, None])

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        """Return ``image`` (B, C, H, W) float32, of pixels (B, H, W) or (B, H, W, C)."""
        channels_first = pixels[:, None] if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2)
        return {IMAGE: channels_first.float() * self.scale + self.shift}


class TokenEncoder(nn.Module):
    """Tokens are what the network takes."""

    takes = (TOKENS,)

    def forward(self, tokens_BT: Tensor) -> dict[str, Tensor]:
        """Return the tokens by name."""
        return {TOKENS: tokens_BT}


Encoder = TableEncoder | PixelEncoder | TokenEncoder


def encoder_of(card: ModelCard, numbers: Sequence[str]) -> Encoder:
    """The encoding in front of a model; ``numbers`` names the numbers of a table."""
    if card.model.kind == "tabular":
        return TableEncoder(card.preprocessing, numbers)
    if card.model.kind == "image":
        assert card.preprocessing.image is not None
        return PixelEncoder(card.preprocessing.image)
    return TokenEncoder()


def _bounds(feature: NumericFeature) -> tuple[float, float]:
    """The smallest and the largest number that counts as one."""
    least, most = feature.least_and_most
    return (math.nextafter(-1.0, 0.0) if feature.scale == "log1p" else least), most


def _log1p(x: Tensor) -> Tensor:
    """ln(1 + x), exact to a few units in the last place, which ln of the rounded sum is not. ONNX has no such operation.

    Source: Goldberg, "What every computer scientist should know about floating-point arithmetic", 1991, theorem 4.
    """
    u = 1 + x
    return torch.where(u == 1, x, torch.log(u) * (x / (u - 1)))
