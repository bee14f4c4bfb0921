"""The driver's order to the ranks and their answer: plain documents, validated on arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from sparkring.conf.schema import Config
from sparkring.pipelines.data.dataset.manifest import Manifest

if TYPE_CHECKING:
    from sparkring.pipelines.training.job.layout import Layout


class TrainJob(BaseModel):
    """One generation of a training run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: Config
    dataset_url: str
    dataset_version: int
    run_url: str
    generation: int
    """Number of earlier starts of the run's ring."""
    lanes: int
    """Fixed at the run's first start."""
    predicted_s: float | None = None
    """Predicted seconds of a step; None unless the planner chose the layout."""


class TrainSummary(BaseModel):
    """Rank 0's report when a generation ends."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")  # a metric may be NaN

    steps: int
    """Optimizer steps of the whole run."""
    resumed_at: int
    """Optimizer steps that were done when this generation began."""
    epochs: int | None = None
    """Epochs of the run so far; None in a result of an earlier release, which always trained all of them."""
    ended_early: str = ""
    """Why the run ended before its last epoch; empty if it did not."""
    best_epoch: int = -1
    validation: dict[str, float] = {}
    """Held-out metrics of the best epoch."""
    receipts: str = ""
    """Hash over all ranks' events of the run (``data/order/receipts.py``)."""
    failed_checkpoints: int = 0
    """Checkpoints of this generation that could not be written; training continued."""
    interrupted: bool = False
    """The generation was asked to end before the run was done; it saved a checkpoint."""


def layout_of(config: Config, manifest: Manifest) -> Layout | None:
    """The layout that a config asks for; None for plain data parallelism, where each rank holds the whole model.

    Raises:
        LayoutRefused, ConfigError: the layout is impossible, or the network normalises over micro-batches and none are named.
    """
    pipelined = config.train.parallel.pipelined
    if not pipelined and config.model.network is None:
        return None
    from sparkring.models.build import list_blocks  # brings torch, which is not needed otherwise
    from sparkring.pipelines.training.job.layout import Layout, require_micro_batches
    from sparkring.pipelines.training.job.tasks import shapes_of

    blocks = list_blocks(config.model, shapes_of(manifest.task, manifest.preprocessing))
    require_micro_batches(config.train, blocks)
    return Layout.of(config.train, blocks) if pipelined else None
