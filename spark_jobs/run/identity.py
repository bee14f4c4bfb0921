"""The identity of a run: everything that changes what it learns. A run belongs to one identity for good, and is named after it.

Pure: a config and a manifest in, a JSON document out.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from sparkring.conf.schema import Config, OptimizerConfig
from sparkring.conf.schema.model import ABOUT_WEIGHTS
from sparkring.models.networks import may_normalise_rows
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.order.row_order import default_lanes

FREE_TO_CHANGE = {"num_ranks", "lanes", "checkpoint_steps", "checkpoint_s", "keep_checkpoints", "on_nonfinite", "recovery",
                  "reader_threads", "record_rows", "ring", "bucket_mb", "parallel", "memory_mb", "cache_mb", "cache_folder"}
"""Train settings that do not change what is learned, so a run may resume under other values. A new key that belongs here and is missing
gives every run another name; a test asks for each key."""
OPTIMIZER_S_FIRST_KEYS = {"name", "lr", "momentum", "weight_decay", "schedule", "warmup_steps", "clip_norm"}
"""Keys of the optimizer that every run's identity has; others only where they are not the default."""
ABSENT = "(no such key)"
"""In a difference: the value of the side that lacks the key."""

Identity = dict[str, Any]


class Difference(NamedTuple):
    """The first config key in which two identities differ."""

    key: str
    theirs: Any
    mine: Any


def identity_of(config: Config, manifest: Manifest) -> Identity:
    """The identity that ``config`` gives a run on the dataset version of ``manifest``."""
    train = config.train
    lacking = {"early_stopping": train.early_stopping is None, "strategy": train.strategy.kind == "exact"}  # older runs lack these keys
    without = dict.fromkeys(FREE_TO_CHANGE | {key for key, plain in lacking.items() if plain}, True)
    optimizer = {key for key, field in OptimizerConfig.model_fields.items()
                 if key not in OPTIMIZER_S_FIRST_KEYS and getattr(train.optimizer, key) == field.default}
    return {
        "format": 1,
        **({"micro_batches": config.train.num_micro_batches} if normalises_rows(config) else {}),  # else they change nothing
        **({"train.ring.wire": train.ring.wire} if train.ring.wire != "exact" else {}),  # all else of the ring is free to change
        "content_id": manifest.content_id,
        "dataset_version": manifest.version,
        **({} if manifest.fold is None else {"fold": manifest.fold}),
        "model": config.model.model_dump(mode="json", exclude=_where_weights_are(config)),
        "train": train.model_dump(mode="json", exclude={**without, "optimizer": optimizer}),
        "lanes": train.lanes or _lanes(config),
    }


def is_free_to_change(key: str, config: Config) -> bool:
    """Whether a key of ``config``, e.g. ``train.ring.device``, changes nothing that is learned."""
    section, _, rest = key.partition(".")
    learned = {"train.lanes", "train.ring.wire", *(["train.parallel.micro_batches"] if normalises_rows(config) else [])}
    return section == "train" and rest.partition(".")[0] in FREE_TO_CHANGE and key not in learned


def normalises_rows(config: Config) -> bool:
    """Whether the network normalises over the rows of a micro-batch; a network of the catalogue may, if micro-batches are named."""
    perhaps = may_normalise_rows(config.model.network) and config.train.parallel.micro_batches is not None
    return getattr(config.model, "norm", None) == "batch" or perhaps


def name_of(config: Config, manifest: Manifest) -> str:
    """The name of the run of ``config`` on the dataset version of ``manifest``, e.g. ``v2-1f3a9c07``.

    Lanes that the config does not give are left out: they come from the number of ranks, which may change.
    """
    train = manifest.splits.get("train")
    identity = identity_of(config.fitted_to(train.rows if train else 0), manifest)
    if config.train.lanes is None:
        del identity["lanes"]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return f"v{manifest.version}-{digest[:8]}"


def _where_weights_are(config: Config) -> set[str]:
    """The keys about given weights that do not count: only the hash of their file does, and without weights none of them."""
    return {*ABOUT_WEIGHTS} - ({"weights_sha256"} if config.model.weights else set())


def first_difference(theirs: Identity, mine: Identity, *, path: str = "") -> Difference | None:
    """The innermost key, below ``path``, in which two identities differ, or None if they are equal."""
    for key in sorted(mine.keys() | theirs.keys()):
        one, other = theirs.get(key, ABSENT), mine.get(key, ABSENT)
        if one != other:
            inside = isinstance(one, dict) and isinstance(other, dict)
            return first_difference(one, other, path=f"{path}{key}.") if inside else Difference(f"{path}{key}", one, other)
    return None


def parts_of_step(config: Config) -> int:
    """Number of parts that the rows of a step are dealt to: micro-batches of a model in stages, else ranks."""
    return config.train.num_micro_batches if config.train.parallel.pipelined else config.train.num_ranks


def _lanes(config: Config) -> int:
    """Number of lanes; twice as many as needed if the layout is chosen later, so that more numbers of micro-batches divide them."""
    return default_lanes(parts_of_step(config)) * (2 if config.train.parallel.auto else 1)
