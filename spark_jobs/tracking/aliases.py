"""Keep the aliases of MLflow's registered model equal to our registry's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sparkring.conf.schema import TrackingConfig
from sparkring.errors import ConfigError, TrackingFailed
from sparkring.spark_jobs.tracking.server import RUN_TAG, WEIGHTS_TAG, MlflowServer, address, settings


class TrainedModel(NamedTuple):
    """A model version, by what identifies it in both registries."""

    run: str
    """Name of the run's folder."""
    weights_sha256: str


def mirror_aliases(tracking: TrackingConfig, aliases: Mapping[str, TrainedModel | None]) -> tuple[str, ...]:
    """Give MLflow's versions the aliases that ours have; a second call changes nothing. Other aliases stay.

    Args:
        tracking: Names the server and the registered model.
        aliases: Alias -> the model that has it; None if none has.
    Returns:
        The aliases that were changed.
    Raises:
        ConfigError: ``tracking.registered_model`` is not set.
        EnvironmentProblem: MLflow is not installed.
        TrackingFailed: MLflow does not answer, or has no version of a model, or this process is sending to another server; only in the
            first case may an alias have been changed.
    """
    model = tracking.registered_model
    if model is None:
        raise ConfigError("tracking.registered_model is not set, so MLflow has no aliases; set it and run `sparkring track`.")
    with settings(tracking):
        server = MlflowServer(address(tracking))
        wanted = {alias: None if trained is None else _number(server, model, trained) for alias, trained in aliases.items()}
        there = server.aliases(model)
        changed = tuple(alias for alias, number in wanted.items() if there.get(alias) != number)
        for alias in changed:
            server.set_alias(model, alias, wanted[alias])
    return changed


def _number(server: MlflowServer, model: str, trained: TrainedModel) -> str:
    number = server.version(model, {RUN_TAG: trained.run, WEIGHTS_TAG: trained.weights_sha256})
    if number is None:
        raise TrackingFailed(f"MLflow at {server.place} has no version of {model} from run {trained.run} with weights "
                             f"{trained.weights_sha256[:16]}; run `sparkring track` with that run's config.")
    return number
