"""Which run is a strategy's training in a comparison: one whose seconds and bytes are those of the config.

A run is named after what it learns, which ranks, rings and checkpoints do not change, though they change what a comparison shows:

    <name>                    that of ``train``, if it is not begun yet, or was trained under the settings of the config
    <name>-<n>-ranks-<hash>   else one beside it, named after these settings: the same comparison finds it again and resumes it
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from sparkring.conf.schema import Config, TrainConfig
from sparkring.errors import CheckpointDamaged, ConfigError
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.events.writer import read_events
from sparkring.spark_jobs.reporting.comparison.facts import compared
from sparkring.spark_jobs.run.folder import RunFolder
from sparkring.spark_jobs.run.given import with_given_weights
from sparkring.spark_jobs.run.identity import FREE_TO_CHANGE, first_difference, identity_of, name_of
from sparkring.spark_jobs.run.listing import read_document_of, run_names
from sparkring.spark_jobs.spark.progress import Progress

UNTIMED = {"lanes", "keep_checkpoints", "on_nonfinite", "recovery", "cache_folder"}
UNTIMED_OF_RING = {"wire", "launcher", "fork_ranks", "allow_cpu_fallback", "allow_plaintext", "start_timeout_s", "deadline_s",
                   "heartbeat_s"}
"""Settings that are free to change and cost a step neither seconds nor bytes; wire and lanes belong to a run's identity."""


def with_comparable_run(config: Config, manifest: Manifest, *, progress: Progress) -> Config:
    """The config with the run named that a comparison may show as its own.

    Args:
        config: A training's config, which names no run.
        manifest: Its dataset version.
        progress: Gets a note if the run that ``train`` would resume is not comparable.
    Raises:
        DocumentDamaged, StorageError: that run cannot be read.
    """
    known = run_names(open_store(config.runs))
    name, mine = name_of(with_given_weights(config), manifest), settings_of(config.train)
    beside = f"{name}-{config.train.num_ranks}-ranks-{hashlib.sha256(json.dumps(mine, sort_keys=True).encode()).hexdigest()[:6]}"
    if beside in known:
        return config.changed(run=beside)
    objection = _objection(config, manifest, name) if name in known else ""
    if not objection:
        return config.changed(run=name)
    progress.note(f"compare: run {name} {objection}; its seconds and bytes are not those of this config, so {beside} is trained beside it")
    return config.changed(run=beside)


def settings_of(train: TrainConfig) -> dict[str, Any]:
    """All that is free to change in a run and costs its steps seconds or bytes."""
    return train.model_dump(mode="json", include=FREE_TO_CHANGE - UNTIMED, exclude={"ring": UNTIMED_OF_RING})


def _objection(config: Config, manifest: Manifest, name: str) -> str:
    """Why the run is not comparable; empty if it is."""
    train, folder = config.train, RunFolder(f"{config.runs}/{name}")
    lanes = read_document_of(open_store(config.runs), name).identity.get("lanes")
    mine = identity_of(config.fitted_to(manifest.splits["train"].rows), manifest)["lanes"]
    if lanes != mine:
        return f"was begun with {lanes} lanes, and {train.num_ranks} ranks begin one with {mine}, which deals other rows to a step"
    if folder.result() is None and folder.committed() < 0:
        return ""  # all of its steps are still to come
    theirs = _trained_with(folder.url)
    if not theirs:
        return "has no checkpoint that says how it was trained"
    found = next(filter(None, (first_difference(each, settings_of(train), path="train.") for each in theirs)), None)
    if found:
        return f"was trained with {found.key}={found.theirs}, this config says {found.mine}"
    others = [ranks for ranks in compared("", name, read_events(folder.url), {}).ranks if ranks != train.num_ranks]
    return f"was trained by {others[0]} ranks for a while, this config says {train.num_ranks}" if others else ""


def _trained_with(run_url: str) -> list[dict[str, Any]]:
    """The settings that each of its checkpoints was written under, as far as they can be read."""
    checkpoints, found = Checkpoints(run_url), []
    for number in checkpoints.numbers():
        with suppress(CheckpointDamaged, ConfigError, ValidationError):  # overtaken, or of another release
            found.append(settings_of(TrainConfig.model_validate(checkpoints.document(number).config["train"])))
    return found
