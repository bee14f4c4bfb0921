"""A training run on ranks of this machine, without Spark: what it wrote and what came of it. Says nothing about the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load
from torch import Tensor

from harness.ranks import run_on_ranks
from sparkring.conf.loading import parse_config
from sparkring.conf.schema import Config
from sparkring.pipelines.training.events.writer import Record, read_events
from sparkring.pipelines.training.job.job import TrainJob
from sparkring.pipelines.training.job.model_files import load_card, load_weights
from sparkring.pipelines.training.train_rank import train_rank

LANES, DEADLINE_S = 24, 900.0
PREPARE = {
    "sources": {"rows": {"path": "none.csv", "columns": {"id": "bigint", "digit": "int", "pixel0": "double"}}},
    "query": "SELECT id AS row_id, digit, pixel0 FROM rows", "label": "digit", "task": "multiclass", "features": {"numeric": ["pixel0"]},
    "split": {"by": "random"}}
"""A config needs it; the dataset is written without Spark."""


@dataclass(frozen=True)
class Run:
    """One run that is done."""

    url: str
    events: list[Record]
    results: list[Any]
    """What the function returned, by rank."""

    @property
    def held_out(self) -> dict[str, float]:
        """Metrics on the validation split after the last epoch."""
        metrics: dict[str, float] = [record["validation"] for record in self.events if record["event"] == "epoch"][-1]
        return metrics

    def step_seconds(self) -> list[float]:
        """Of each step that all ranks did together, those of its slowest rank."""
        slowest: dict[tuple[int, int], float] = {}
        for record in self.events:
            if record["event"] == "step":
                place = record["epoch"], record["step"]
                slowest[place] = max(slowest.get(place, 0.0), record["data_s"] + record["compute_s"] + record["comm_s"])
        return [slowest[place] for place in sorted(slowest)]

    def weights(self) -> dict[str, Tensor]:
        """The model's weights by their names."""
        return load(load_weights(self.url, load_card(self.url)))


def config_of(folder: Path, dataset: Path, *, hidden: tuple[int, ...], **train: Any) -> Config:
    """The config of a run in ``folder``: a network with these hidden layers, and a section ``train``."""
    return parse_config({
        "name": "study", "workspace": str(folder), "run": "first", "prepare": PREPARE, "dataset_url": str(dataset),
        "model": {"hidden": hidden}, "train": {"lanes": LANES, "checkpoint_steps": 10_000, **train}}, origin="study")


def trained(config: Config, fn: Callable[..., Any] = train_rank) -> Run:
    """Train by a config of ``config_of``.

    Args:
        config: Of one run.
        fn: What each rank runs in the place of ``train_rank``, with its arguments.
    """
    url = str(Path(config.workspace) / "run")
    job = TrainJob(config=config, dataset_url=config.dataset, dataset_version=1, run_url=url, generation=0, lanes=LANES)
    results = run_on_ranks(config.train.num_ranks, fn, job.model_dump(mode="json"), deadline_s=DEADLINE_S)
    return Run(url, list(read_events(url)), results)
