"""What the driver tells the ranks: one plain document, checked on arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from sparkring.conf.schema import Config
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset

if TYPE_CHECKING:
    from sparkring.pipelines.training.job.layout import Layout


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
    predicted_s: float | None = None
    """Of a step, where the planner chose the layout."""

    def layout(self) -> Layout | None:
        """How the model is laid over the ranks; None where each holds all of it and does a step at once."""
        return layout_of(self.config, Dataset(self.dataset_url).manifest(self.dataset_version))


class TrainSummary(BaseModel):
    """What rank 0 reports when the run is done."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    steps: int
    """Optimizer steps of the whole run."""
    resumed_at: int
    """Optimizer steps that were done already when this generation began."""
    best_epoch: int = -1
    validation: dict[str, float] = {}
    """Held-out metrics of the best epoch."""
    receipts: str = ""
    """Hash over all ranks' events of the run (``data/receipts.py``)."""
    failed_checkpoints: int = 0
    """Checkpoints of this generation that could not be written; training went on."""
    interrupted: bool = False
    """The generation was asked to end before the run was done; it has saved."""


def layout_of(config: Config, manifest: Manifest) -> Layout | None:
    """The layout that a config asks for on rows like these; None for plain data parallelism.

    Raises:
        LayoutRefused, ConfigError: there is no such layout.
    """
    if not config.train.parallel.pipelined:
        return None
    from sparkring.models.build import list_blocks  # brings torch, which is not needed otherwise
    from sparkring.pipelines.training.job.layout import Layout
    from sparkring.pipelines.training.job.tasks import shapes_of

    blocks = list_blocks(config.model, shapes_of(manifest.task, manifest.preprocessing))
    return Layout.of(config.train, blocks)
