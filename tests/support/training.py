"""Training configs for tests, on top of the minimal config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.linalg import norm
from safetensors.torch import load
from torch import Tensor

from sparkring.conf.loading import parse_config
from sparkring.conf.schema import Config
from sparkring.pipelines.training.model_files import load_card, load_weights
from tests.support.configs import MINIMAL


def train_config(workspace: Path, **sections: Any) -> Config:
    """The minimal config under ``workspace`` with these sections, e.g. ``train={"epochs": 1}``."""
    return parse_config({**MINIMAL, "workspace": str(workspace), **sections}, origin="test")


def weights_of_run(folder: Path) -> dict[str, Tensor]:
    """The weights that the run under ``folder`` committed as its model."""
    url = str(folder / "run")
    return load(load_weights(url, load_card(url)))


def largest_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Relative to the second, of any tensor; both have the same names."""
    assert one.keys() == other.keys()
    return max(float(norm(one[name] - other[name]) / norm(other[name])) for name in other)
