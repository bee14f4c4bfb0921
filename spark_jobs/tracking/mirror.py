"""Keep the aliases of MLflow's registered model equal to ours, where a config asks for it."""

from __future__ import annotations

from sparkring.conf.schema import Config
from sparkring.errors import TrackingFailed
from sparkring.spark_jobs.registry.registry import Registry
from sparkring.spark_jobs.spark.progress import Progress
from sparkring.spark_jobs.tracking.aliases import TrainedModel, mirror_aliases


def mirror(registry: Registry, config: Config, progress: Progress) -> None:
    """Set MLflow's aliases to ours; a server that is away is a note, and the next change sets them."""
    tracking = config.tracking
    if tracking is None or tracking.registered_model is None:
        return
    aliases = registry.aliases()
    wanted = {"champion": aliases.champion, "candidate": aliases.candidate}
    try:
        changed = mirror_aliases(tracking, {alias: None if number is None else _trained(registry, number)
                                            for alias, number in wanted.items()})
    except TrackingFailed as error:
        progress.note(f"tracking: {error.found}; MLflow's aliases are set by the next `sparkring models` or `retrain` that changes ours")
        return
    if changed:
        progress.note(f"tracking: MLflow's {' and '.join(changed)} of {tracking.registered_model} set as here")


def _trained(registry: Registry, number: int) -> TrainedModel:
    version = registry.version(number)
    return TrainedModel(version.run, version.weights_sha256)
