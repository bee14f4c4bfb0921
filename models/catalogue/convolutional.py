"""Convolutional networks that no library has in this size: LeNet-5, AlexNet for small images, and parallel branches.

Sources: LeCun et al., "Gradient-based learning applied to document recognition", Proc. IEEE 1998; Krizhevsky et al.,
"ImageNet classification with deep convolutional neural networks", NeurIPS 2012; Szegedy et al., "Going deeper with
convolutions", CVPR 2015.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sparkring.errors import ConfigError
from sparkring.models.adapting.adapt import adapt
from sparkring.models.blocks import BlockList

if TYPE_CHECKING:
    from sparkring.models.build import Shapes


def lenet5(shapes: Shapes) -> BlockList:
    """LeNet-5 with tanh. Unlike the paper's, each map of the third layer sees all maps before it, and the output layer is linear."""
    return adapt(partial(_lenet5, *_image("lenet5", shapes, least=28), shapes.num_outputs), shapes)


def alexnet_cifar(shapes: Shapes, *, width: int = 4096, dropout: float = 0.0) -> BlockList:
    """AlexNet for images of 32 x 32: kernels of 3 x 3, pooling by 2, and two hidden layers of ``width``."""
    channels, _, _ = _image("alexnet_cifar", shapes, least=16)
    return adapt(partial(_alexnet_cifar, channels, shapes.num_outputs, width), shapes, dropout=dropout)


def inception(shapes: Shapes, *, width: int = 16, dropout: float = 0.0) -> BlockList:
    """Two modules of four parallel branches, as in GoogLeNet, behind one convolution; normalised over micro-batches."""
    channels, _, _ = _image("inception", shapes, least=8)
    return adapt(partial(Inception, channels, shapes.num_outputs, width), shapes, dropout=dropout)


def _lenet5(channels: int, height: int, width: int, num_outputs: int) -> nn.Module:
    padding = 2 if height < 32 else 0  # images of 28 x 28 are padded to the paper's 32 x 32
    sides = [((side + 2 * padding - 4) // 2 - 4) // 2 for side in (height, width)]
    return nn.Sequential(OrderedDict(
        c1=nn.Conv2d(channels, 6, 5, padding=padding), tanh1=nn.Tanh(), s2=nn.AvgPool2d(2),
        c3=nn.Conv2d(6, 16, 5), tanh3=nn.Tanh(), s4=nn.AvgPool2d(2), flatten=nn.Flatten(),
        c5=nn.Linear(16 * sides[0] * sides[1], 120), tanh5=nn.Tanh(), f6=nn.Linear(120, 84), tanh6=nn.Tanh(),
        output=nn.Linear(84, num_outputs)))


def _alexnet_cifar(channels: int, num_outputs: int, width: int) -> nn.Module:
    return nn.Sequential(OrderedDict(
        conv1=nn.Conv2d(channels, 64, 3, stride=2, padding=1), relu1=nn.ReLU(), pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(64, 192, 3, padding=1), relu2=nn.ReLU(), pool2=nn.MaxPool2d(2),
        conv3=nn.Conv2d(192, 384, 3, padding=1), relu3=nn.ReLU(), conv4=nn.Conv2d(384, 256, 3, padding=1), relu4=nn.ReLU(),
        conv5=nn.Conv2d(256, 256, 3, padding=1), relu5=nn.ReLU(), pool5=nn.AdaptiveMaxPool2d(2), flatten=nn.Flatten(),
        dropout6=nn.Dropout(), linear6=nn.Linear(1024, width), relu6=nn.ReLU(),
        dropout7=nn.Dropout(), linear7=nn.Linear(width, width), relu7=nn.ReLU(), output=nn.Linear(width, num_outputs)))


class Inception(nn.Module):
    """A convolution, two modules of parallel branches with pooling between them, and a linear layer on the mean of each channel."""

    def __init__(self, channels: int, num_outputs: int, width: int) -> None:
        super().__init__()
        self.stem, self.pool = _convolution(channels, 2 * width, 3), nn.MaxPool2d(2)
        self.inception1, self.inception2 = Branches(2 * width, width), Branches(4 * width, 2 * width)
        self.dropout, self.output = nn.Dropout(), nn.Linear(8 * width, num_outputs)

    def forward(self, image_BCHW: Tensor) -> Tensor:
        """Return logits (B, K)."""
        x = self.inception2(self.pool(self.inception1(self.pool(self.stem(image_BCHW)))))
        logits: Tensor = self.output(self.dropout(x.mean(dim=(2, 3))))
        return logits


class Branches(nn.Module):
    """1x1, 1x1 - 3x3, 1x1 - 5x5, and pooling - 1x1, side by side; each makes ``width`` channels."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.one = _convolution(channels, width, 1)
        self.three = nn.Sequential(_convolution(channels, width, 1), _convolution(width, width, 3))
        self.five = nn.Sequential(_convolution(channels, width // 2, 1), _convolution(width // 2, width, 5))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), _convolution(channels, width, 1))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the channels of all branches, (B, 4 * width, H, W)."""
        return torch.cat([self.one(x_BCHW), self.three(x_BCHW), self.five(x_BCHW), self.pooled(x_BCHW)], dim=1)


def _convolution(channels: int, width: int, side: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, width, side, padding=side // 2, bias=False), nn.BatchNorm2d(width), nn.ReLU())


def _image(name: str, shapes: Shapes, *, least: int) -> tuple[int, int, int]:
    if shapes.image is None or min(shapes.image[1:]) < least:
        found = f"images of {shapes.image[1]} x {shapes.image[2]}" if shapes.image else "no images"
        raise ConfigError(f"model.network={name} takes images of {least} x {least} or more, these rows have {found}; prepare larger ones.")
    return shapes.image
