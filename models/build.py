"""From a model's config to a torch module: the one place that knows the names of the networks."""

from __future__ import annotations

from torch import nn

from sparkring.conf.schema import ModelConfig
from sparkring.models.tabular import TabularNetwork


def build_model(config: ModelConfig, *, num_numeric: int, cardinalities: tuple[int, ...]) -> nn.Module:
    """Build an untrained network for rows with these features.

    Args:
        config: Kind and sizes.
        num_numeric: Numeric columns.
        cardinalities: Ids of each category column.
    Returns:
        A module called with the manifest's input tensors by name that returns logits of shape (rows,).
    """
    return TabularNetwork(num_numeric, cardinalities, hidden=config.hidden, max_embedding=config.max_embedding)
