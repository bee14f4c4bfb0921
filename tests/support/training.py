"""Training configs for tests, on top of the minimal config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparkring.conf.loading import parse_config
from sparkring.conf.schema import Config
from tests.support.configs import MINIMAL


def train_config(workspace: Path, **sections: Any) -> Config:
    """The minimal config under ``workspace`` with these sections, e.g. ``train={"epochs": 1}``."""
    return parse_config({**MINIMAL, "workspace": str(workspace), **sections}, origin="test")
