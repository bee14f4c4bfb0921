"""The identity of a search: which earlier trials count. That of its runs (spark_jobs/run/identity.py) less what trials change, so that
trials are never taken for those of a config that learns something else.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sparkring.conf.schema import Config
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.spark_jobs.run.given import with_given_weights
from sparkring.spark_jobs.run.identity import Identity, identity_of
from sparkring.spark_jobs.searching.space import Params, with_params


def name_of_search(config: Config, manifest: Manifest) -> str:
    """The name of the search of ``config`` on the dataset version of ``manifest``, e.g. ``1f3a9c07``.

    Raises:
        ConfigError: there are no such weights as ``model.weights`` or one of its choices names.
    """
    space = config.search.space
    tried: list[Params] = [{}, *({key: value} for key, values in space.items() for value in values.choices)]
    runs = {json.dumps(_unsearched(with_params(config, params), manifest), sort_keys=True) for params in tried}
    searched = {key: values.model_dump(mode="json") for key, values in space.items()}
    what = json.dumps([searched, config.search.metric, sorted(runs)], sort_keys=True)
    return hashlib.sha256(what.encode()).hexdigest()[:8]


def _unsearched(config: Config, manifest: Manifest) -> Identity:
    """The identity of a run without searched keys; hashes of weights and what else follows from a choice stay."""
    train = manifest.splits.get("train")
    identity = identity_of(with_given_weights(config).fitted_to(train.rows if train else 0), manifest)
    if config.train.lanes is None:  # they come from the number of ranks, which may change
        del identity["lanes"]
    for key, values in config.search.space.items():
        if not any(isinstance(choice, dict) for choice in values.choices):  # a section takes what it lacks from the config
            _drop(identity, key)
    return identity


def _drop(identity: Identity, key: str) -> None:
    identity.pop(key, None)  # train.ring.wire is a key of its own
    *path, last = key.split(".")
    here: Any = identity
    for part in path:
        here = here.get(part) if isinstance(here, dict) else None
    if isinstance(here, dict):
        here.pop(last, None)
