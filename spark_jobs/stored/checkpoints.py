"""Inspect a run's checkpoints: ``sparkring checkpoints list | show | verify``. Starts neither Spark nor ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load

from sparkring.errors import CheckpointDamaged, ConfigError
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.strategies.state import MODEL


@dataclass(frozen=True)
class CheckpointFacts:
    """One line of the list."""

    steps: int
    """Optimizer steps done; the checkpoint's name."""
    epoch: int
    step: int
    """The next step of that epoch."""
    validation: dict[str, float]
    """Held-out metrics, if the checkpoint ends an epoch."""
    bytes: int
    parts: int
    layout: str
    kept_as: str = ""
    """``latest``, from which the run resumes; ``best``, which has the best held-out loss or other metric of early stopping; or
    both."""
    damaged: str = ""
    """The reason that it cannot be read; empty if it can."""
    best_by: float | None = None
    """The lowest one is the best; None if the checkpoint ends no epoch."""


@dataclass(frozen=True)
class Verified:
    """A checkpoint whose every byte was checked, and its problem if it has one."""

    steps: int
    tensors: int
    parameters: int
    """Numbers in the model's tensors."""
    problem: str = ""


def list_checkpoints(run_url: str) -> list[CheckpointFacts]:
    """All committed checkpoints of a run, oldest first; reads documents only."""
    checkpoints = Checkpoints(run_url)
    facts = [_facts(checkpoints, number) for number in _numbers(checkpoints, run_url)]
    whole = [each for each in facts if not each.damaged]
    evaluated = [(each.best_by, each.steps) for each in whole if each.best_by is not None]
    latest, best = max((each.steps for each in whole), default=-1), min(evaluated, default=(0.0, -1))[1]
    named = {latest: ["latest"]}
    named[best] = [*named.get(best, []), "best"]
    return [replace(each, kept_as=", ".join(named.get(each.steps, []))) for each in facts]


def show_checkpoint(run_url: str, steps: int | None = None) -> dict[str, Any]:
    """A checkpoint's document; default the latest.

    Raises:
        ConfigError: there is no such checkpoint.
        CheckpointDamaged: it cannot be read.
    """
    checkpoints = Checkpoints(run_url)
    return checkpoints.document(_one_of(_numbers(checkpoints, run_url), steps, run_url)).model_dump()


def verify_checkpoints(run_url: str, steps: int | None = None) -> list[Verified]:
    """Read every byte of a run's checkpoints, or of one, and compare the hashes."""
    checkpoints = Checkpoints(run_url)
    numbers = _numbers(checkpoints, run_url)
    return [_verified(checkpoints, number) for number in (numbers if steps is None else [_one_of(numbers, steps, run_url)])]


def _numbers(checkpoints: Checkpoints, run_url: str) -> list[int]:
    numbers = checkpoints.numbers()
    if not numbers:
        where = open_store(run_url).url
        raise ConfigError(f"{where} holds no checkpoint; name a run, <workspace>/runs/<name>, that has made its first one.")
    return numbers


def _one_of(numbers: list[int], steps: int | None, run_url: str) -> int:
    if steps is not None and steps not in numbers:
        raise ConfigError(f"{run_url} has no checkpoint after {steps} steps; it has {', '.join(map(str, numbers))}.")
    return numbers[-1] if steps is None else steps


def _facts(checkpoints: Checkpoints, number: int) -> CheckpointFacts:
    try:
        document = checkpoints.document(number)
    except (CheckpointDamaged, ConfigError) as error:
        return CheckpointFacts(number, -1, -1, {}, 0, 0, "", damaged=str(error))
    return _facts_of(document)


def _facts_of(document: CheckpointDocument) -> CheckpointFacts:
    position = document.position
    return CheckpointFacts(position.steps_done, position.epoch, position.step, document.validation or {},
                           sum(part.bytes for part in document.parts), len(document.parts), document.layout,
                           best_by=None if math.isnan(document.best_by) else document.best_by)


def _verified(checkpoints: Checkpoints, number: int) -> Verified:
    try:
        tensors = {name: tensor for part in checkpoints.read(number).state for name, tensor in load(part).items()}
    except (CheckpointDamaged, ConfigError, SafetensorError) as error:
        return Verified(number, 0, 0, problem=str(error))
    return Verified(number, len(tensors), sum(tensor.numel() for name, tensor in tensors.items() if name.startswith(MODEL)))
