"""Building a model from its config: the one place that maps a kind of model to its network."""

from __future__ import annotations

from dataclasses import dataclass

from sparkring.conf.schema import ImageModelConfig, ModelConfig, TabularModelConfig
from sparkring.errors import ConfigError
from sparkring.models.blocks import BlockList, WholeModel
from sparkring.models.image import image_blocks
from sparkring.models.inputs import CATEGORICAL, IMAGE, NUMERIC, TOKENS
from sparkring.models.own import own_blocks
from sparkring.models.tabular import tabular_blocks
from sparkring.models.text import text_blocks


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """The facts about a dataset's rows on which a network's layers depend."""

    num_numeric: int = 0
    """Number of numeric columns."""
    cardinalities: tuple[int, ...] = ()
    """Number of ids of each category column."""
    image: tuple[int, int, int] | None = None
    """(channels, height, width)."""
    length: int = 0
    """Tokens of a row."""
    vocabulary: int = 0
    """Number of token ids."""
    pad_id: int | None = None
    """The token that fills a row up; None if there is none."""
    masked: bool = False
    """Whether tokens of a row are masked: a position then sees those on both sides."""
    num_outputs: int = 1
    """Outputs of a row: 1 for a 0 / 1 label or a number, else the number of classes."""


def build_model(config: ModelConfig, shapes: Shapes) -> WholeModel:
    """Build an untrained network for rows of these shapes.

    Args:
        config: Kind and sizes of the network.
        shapes: Shapes of the dataset's rows.
    Returns:
        A module that takes the manifest's input tensors by name, and ``row_seeds`` (rows,) int64 if it has dropout. It
        returns logits of shape (rows,) for a 0 / 1 label, (rows, classes), or (rows, length, vocabulary); for a number
        it returns its standardised value, (rows,).
    Raises:
        ConfigError: this kind of network does not take such rows.
    """
    return WholeModel(list_blocks(config, shapes))


def without_dropout(config: ModelConfig) -> ModelConfig:
    """The config of the same network for prediction: equal parameters, no dropout and so no row seeds."""
    return config.changed(dropout=0.0)


def list_blocks(config: ModelConfig, shapes: Shapes) -> BlockList:
    """List the blocks of ``build_model``'s network; same arguments and errors. No block of a shipped network is built."""
    _require_features(config, shapes)
    if config.network is not None:
        return own_blocks(config.network, shapes, inputs=_inputs(shapes), options=config.options, dropout=config.dropout,
                          per_row=shapes.num_outputs == 1)
    if isinstance(config, TabularModelConfig):
        return tabular_blocks(shapes.num_numeric, shapes.cardinalities, hidden=config.hidden, max_embedding=config.max_embedding,
                              num_outputs=shapes.num_outputs, dropout=config.dropout)
    if isinstance(config, ImageModelConfig):
        assert shapes.image is not None
        return image_blocks(shapes.image[0], shapes.num_outputs, widths=config.widths, norm=config.norm, dropout=config.dropout)
    return text_blocks(shapes.vocabulary, shapes.length, width=config.width, layers=config.layers, heads=config.heads, tied=config.tied,
                       dropout=config.dropout, causal=not shapes.masked)


def _inputs(shapes: Shapes) -> tuple[str, ...]:
    """Names of the input tensors that such rows have."""
    if shapes.image is not None:
        return (IMAGE,)
    if shapes.length:
        return (TOKENS,)
    return (*([NUMERIC] if shapes.num_numeric else []), *([CATEGORICAL] if shapes.cardinalities else []))


def _require_features(config: ModelConfig, shapes: Shapes) -> None:
    if isinstance(config, TabularModelConfig):
        features, found = "prepare.features.numeric or categorical", bool(shapes.num_numeric or shapes.cardinalities)
    elif isinstance(config, ImageModelConfig):
        features, found = "prepare.features.image", shapes.image is not None
    else:
        features, found = "prepare.features.tokens", shapes.length > 0
    if not found:
        raise ConfigError(f"model.kind={config.kind} takes rows with {features}, which this dataset version does not have; "
                          "choose a model of another kind, or prepare such features.")
