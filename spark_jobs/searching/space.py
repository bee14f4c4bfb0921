"""What a search may try: checked against the schema before anything starts, as Optuna's distributions, and as keys of a config. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from sparkring.conf.loading import load_config
from sparkring.conf.schema import Config
from sparkring.conf.schema.search import SearchedKey
from sparkring.errors import ConfigError
from sparkring.spark_jobs.run.identity import is_free_to_change

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Space = Mapping[str, SearchedKey]
Params = Mapping[str, Any]
"""Key -> the value that a trial has."""
SECTIONS = ("model", "train")
"""The sections whose keys may vary: all trials train on one dataset version."""
OF_THE_LOSS = ("train.loss", "train.huber_delta")
"""Keys with other values of which a loss of the same size means something else."""


def require_searchable(config: Config) -> None:
    """Check that there is something to try, and that the config takes the values at the ends of each range and each choice.

    Raises:
        ConfigError: it does not; the key is named.
    """
    space = config.search.space
    if not space:
        raise ConfigError("search.space names no key; give some, e.g. search.space.train.optimizer.lr={low: 1e-4, high: 0.1, log: true}.")
    _require_apart(space)
    of_loss = [key for key in OF_THE_LOSS if key in space]
    if of_loss and config.search.metric == "loss":
        raise ConfigError(f"search.space has {' and '.join(of_loss)}, and search.metric=loss would compare losses of different kinds; set "
                          "search.metric to rmse, mae or r2.")
    for key, values in space.items():
        section, _, rest = key.partition(".")
        if section not in SECTIONS or not rest:
            raise ConfigError(f"search.space has {key}, and only keys of {' and '.join(SECTIONS)} may vary; name one of those.")
        if is_free_to_change(key, config):
            raise ConfigError(f"search.space has {key}, which does not change what is learned; leave it out.")
        for value in values.choices or _samples(values):
            try:
                with_params(config, {key: value})
            except ConfigError as error:
                raise ConfigError(f"search.space.{key} holds {json.dumps(value)}, which the config does not take: {error}") from None


def _require_apart(space: Collection[str]) -> None:
    """Check that no key lies inside another one, whose values would replace its own."""
    for key in space:
        inside = [other for other in space if other.startswith(f"{key}.")]
        if inside:
            raise ConfigError(f"search.space has {key} and, inside it, {', '.join(inside)}, so two values would stand in one place; leave "
                              f"one out, or name each key of {key} by itself.")


def _samples(values: SearchedKey) -> tuple[int | float, ...]:
    """Values at the ends of a range and one inside, at which a key for whole numbers refuses a range that is not."""
    assert values.low is not None
    assert values.high is not None
    if values.whole:
        return values.low, values.high
    return values.low, values.high, values.low + (values.step or 0.37 * (values.high - values.low))


def with_params(config: Config, params: Params) -> Config:
    """The config of a trial, whose run is named after its values.

    Raises:
        ConfigError: it does not take these values.
    """
    nested: dict[str, Any] = {}
    for key, value in params.items():
        *path, last = key.split(".")
        here = nested
        for part in path:
            here = here.setdefault(part, {})
        here[last] = deepcopy(value)  # a trial's values are kept as they are, whatever becomes of the config
    return load_config(config, run=None, **nested)


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Optuna's distribution of each key."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    def of(values: SearchedKey) -> BaseDistribution:
        if values.choices:
            return CategoricalDistribution([json.dumps(choice) for choice in values.choices])  # it knows no lists
        assert values.low is not None
        assert values.high is not None
        if values.whole:
            return IntDistribution(int(values.low), int(values.high), log=values.log, step=int(values.step or 1))
        return FloatDistribution(float(values.low), float(values.high), log=values.log, step=values.step)

    return {key: of(values) for key, values in space.items()}


def as_params(space: Space, internal: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's values from those that Optuna gives."""
    return {key: json.loads(internal[key]) if values.choices else internal[key] for key, values in space.items()}


def as_internal(space: Space, params: Params) -> dict[str, Any]:
    """The inverse of ``as_params``."""
    return {key: json.dumps(params[key]) if values.choices else params[key] for key, values in space.items()}
