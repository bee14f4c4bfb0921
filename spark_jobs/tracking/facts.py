"""What MLflow is told of a run beside its metrics: params, which never change, and tags, which a later start may change. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sparkring.conf.schema import Config
from sparkring.pipelines.training.events.writer import Record
from sparkring.version import __version__


def params_of(config: Config, start: Record) -> dict[str, str]:
    """The params of a run: its model, its training and its data, as they were at the first start.

    Args:
        config: The run's config.
        start: A start record of rank 0.
    """
    named = {"model": config.model.model_dump(mode="json"), "train": config.train.model_dump(mode="json")}
    facts = {name: str(start[name]) for name in ("dataset_url", "dataset_version", "content_id", "batch_rows", "lanes", "seed")}
    return {**dict(_flat(named)), **facts, "ranks": str(start["size"]), "sparkring_version": __version__}


def tags_of(config: Config, start: Record, *, run_url: str) -> dict[str, str]:
    """The tags of a run: where it is, and how it was started last."""
    return {"sparkring.name": config.name, "sparkring.run_url": run_url, "sparkring.ranks": str(start["size"]),
            "sparkring.device": str(start["device"]), "sparkring.reduction": str(start["reduction"]),
            "sparkring.generation": str(start["generation"])}


def _flat(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """``train.optimizer.lr``, ``0.001`` and so on, without keys that are null."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{name}.")
        elif value is not None:
            yield f"{path}{name}", str(value)
