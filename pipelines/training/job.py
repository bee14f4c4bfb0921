"""What the driver tells the ranks: one plain document, checked on arrival."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from sparkring.conf.schema import Config


class TrainJob(BaseModel):
    """One generation of a training run."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    config: Config
    dataset_url: str
    dataset_version: int
    run_url: str
    generation: int
    """How many times the run's ring has been started before."""
    lanes: int
    """Fixed at the run's first start."""


class TrainSummary(BaseModel):
    """What rank 0 reports when the run is done."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    steps: int
    """Optimizer steps of the whole run."""
    resumed_at: int
    """Optimizer steps that were done already when this generation began."""
    best_epoch: int
    validation: dict[str, float]
    """Held-out metrics of the best epoch."""
    receipts: str = ""
    """Hash over all ranks' events of the run (``data/receipts.py``)."""
