"""Small networks of the lectures: linear regression, the 2-3-2 network, and a perceptron on pixels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from torch import nn

from sparkring.errors import ConfigError
from sparkring.models.adapting.adapt import adapt
from sparkring.models.blocks import LOGITS, Block, BlockList
from sparkring.models.inputs import NUMERIC

if TYPE_CHECKING:
    from sparkring.models.build import Shapes


def linear(shapes: Shapes) -> BlockList:
    """A weighted sum of a row's numbers, and a constant: linear regression, or logistic regression, as the task is."""
    _require_numbers("linear", shapes)
    make = partial(nn.Linear, shapes.num_numeric, shapes.num_outputs)
    return BlockList((Block("linear", {"linear": make}, reads=(NUMERIC,), writes=(LOGITS,)),), inputs=(NUMERIC,))


def two_three_two(shapes: Shapes) -> BlockList:
    """The network that is computed by hand: 2 numbers, 3 hidden sigmoids, 2 outputs, whose sigmoid is left to the loss."""
    _require_numbers("two_three_two", shapes)
    return BlockList((
        Block("hidden", {"hidden": partial(nn.Linear, shapes.num_numeric, 3), "sigmoid": nn.Sigmoid}, reads=(NUMERIC,)),
        Block("output", {"output": partial(nn.Linear, 3, shapes.num_outputs)}, writes=(LOGITS,))), inputs=(NUMERIC,))


def mlp(shapes: Shapes, *, hidden: Sequence[int] = (512, 256), dropout: float = 0.0) -> BlockList:
    """A multilayer perceptron on an image's pixels."""
    if shapes.image is None:
        raise ConfigError("model.network=mlp takes images; for tables leave model.network out: the shipped network is a perceptron.")
    return adapt(partial(_perceptron, (prod(shapes.image), *hidden), shapes.num_outputs), shapes, dropout=dropout)


def _perceptron(widths: Sequence[int], num_outputs: int) -> nn.Module:
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for place, pair in enumerate(pairwise(widths)):
        layers |= {f"hidden{place}": nn.Linear(*pair), f"relu{place}": nn.ReLU(), f"dropout{place}": nn.Dropout()}
    layers["output"] = nn.Linear(widths[-1], num_outputs)
    return nn.Sequential(layers)


def _require_numbers(name: str, shapes: Shapes) -> None:
    if not shapes.num_numeric:
        raise ConfigError(f"model.network={name} takes rows with numbers; name some in prepare.features.numeric.")
