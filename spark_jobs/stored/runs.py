"""``sparkring runs list | show | compare | remove``: the runs of a workspace, side by side. Starts neither Spark nor ranks.

    list       one line a run: its document, its result, or else its checkpoints
    compare    the keys in which the identities of runs differ, and their metrics
    remove     a run's folder, then its document, so that a removal that was cut short shows and can be repeated

``spark_jobs/run`` writes what is read here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from sparkring.errors import CheckpointDamaged, ConfigError, DocumentDamaged
from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.spark_jobs.registry.registry import Registry
from sparkring.spark_jobs.run.folder import LOCK, RunFolder
from sparkring.spark_jobs.run.identity import ABSENT
from sparkring.spark_jobs.run.listing import RunDocument, document_of, read_document_of, run_names
from sparkring.spark_jobs.run.place import require_run

EVALUATION = "evaluation.json"
READ_AT_ONCE = 8
"""Runs that are read at the same time: most of the time goes into waiting for the storage."""
State = Literal["done", "running", "ended", "damaged"]


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One run."""

    name: str
    url: str
    """Its folder."""
    state: State
    """``running``: a process trains it now; ``ended``: it stopped before its last epoch, and the same ``train`` resumes it."""
    created_at: str = ""
    dataset_url: str = ""
    dataset_version: int | None = None
    epochs: int = 0
    """Epochs that are done."""
    of_epochs: int = 0
    steps: int = 0
    """Optimizer steps that are done."""
    validation: dict[str, float] = field(default_factory=dict)
    """Held-out metrics of the best epoch so far."""
    test: dict[str, float] = field(default_factory=dict)
    """The network's metrics of ``sparkring evaluate``, if it was run."""
    identity: dict[str, Any] = field(default_factory=dict)
    """Everything that changes what the run learns."""
    problem: str = ""
    """The reason that it is damaged."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several runs side by side; each value is a list with one entry a run."""

    names: tuple[str, ...]
    differences: dict[str, tuple[Any, ...]]
    """The config keys in which they differ."""
    metrics: dict[str, tuple[float | None, ...]]
    """E.g. ``validation loss``; None where a run has none."""


def list_runs(runs_url: str) -> list[RunSummary]:
    """All runs of a workspace, oldest first.

    Args:
        runs_url: The folder of the runs, ``config.runs``.
    """
    runs = open_store(runs_url)
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        found = list(pool.map(partial(_summary, runs, runs_url), run_names(runs)))
    return sorted(found, key=lambda run: (run.created_at, run.name))


def show_run(runs_url: str, name: str) -> RunSummary:
    """One run.

    Raises:
        ConfigError: there is no such run.
    """
    runs = open_store(runs_url)
    require_run(run_names(runs), name, runs_url)
    return _summary(runs, runs_url, name)


def compare_runs(runs_url: str, names: Sequence[str]) -> Comparison:
    """The differences of several runs.

    Raises:
        ConfigError: there is no such run, or one name only.
        DocumentDamaged: a run cannot be read.
    """
    if len(names) < 2:
        raise ConfigError(f"{len(names)} run cannot be compared; name two runs or more.")
    runs = [show_run(runs_url, name) for name in names]
    damaged = next((run for run in runs if run.state == "damaged"), None)
    if damaged:
        raise DocumentDamaged(damaged.url, found=damaged.problem, expected="a run", remedy="leave this run out of the comparison")
    keys = _side_by_side([dict(_flat(run.identity)) for run in runs], absent=ABSENT)
    return Comparison(names=tuple(names), metrics=_side_by_side([_all_metrics(run) for run in runs], absent=None),
                      differences={key: values for key, values in keys.items() if any(value != values[0] for value in values)})


def remove_run(runs_url: str, name: str) -> str:
    """Delete a run: events, checkpoints, model, evaluation, scores and report; returns the address of its folder.

    Raises:
        ConfigError: there is no such run, or its model is registered.
        CommitConflict: a process trains it now; nothing was deleted.
    """
    runs, folder = open_store(runs_url), open_store(f"{runs_url}/{name}")
    require_run(run_names(runs), name, runs_url)
    registry = Registry(runs_url.removesuffix("/runs"))
    registered = next((version for version in map(registry.version, registry.versions()) if version.run == name), None)
    if registered is not None:
        raise ConfigError(f"run {name} holds model version {registered.version} of the registry, which may be rolled back to; it stays.")
    with folder.lock(LOCK, busy=f"{folder.url} is being trained by another process; nothing was removed: stop it first, or wait for it."):
        runs.delete(name)
    runs.delete(name)  # a lease leaves its last word
    runs.delete(document_of(name))
    return folder.url


def _summary(runs: Store, runs_url: str, name: str) -> RunSummary:
    folder = RunFolder(f"{runs_url}/{name}")
    try:
        return _read(folder, read_document_of(runs, name))
    except (DocumentDamaged, ConfigError, FileNotFoundError) as error:
        problem = str(error)
    except (KeyError, TypeError) as error:
        problem = f"its document cannot be read ({type(error).__name__}: {error})"
    return RunSummary(name=name, url=folder.url, state="damaged", problem=problem)


def _read(folder: RunFolder, document: RunDocument) -> RunSummary:
    identity, result = document.identity, folder.result()
    epochs: int = identity["train"]["epochs"]
    if result is not None:
        reached: dict[str, Any] = {"state": "done", "epochs": epochs if result.epochs is None else result.epochs, "steps": result.steps,
                                   "validation": result.validation}
    else:
        reached = {"state": "running" if folder.store.is_locked(LOCK) else "ended", **_progress(Checkpoints(folder.url))}
    return RunSummary(name=folder.name, url=folder.url, created_at=document.created_at, dataset_url=document.dataset_url,
                      dataset_version=identity["dataset_version"], of_epochs=epochs, identity=identity,
                      test=_test_metrics(folder.store), **reached)


def _progress(checkpoints: Checkpoints) -> dict[str, Any]:
    """How far a run that is not done has come, by its checkpoints."""
    documents = list(_documents(checkpoints))
    if not documents:
        return {}
    evaluated = [each for each in documents if not math.isnan(each.best_by)]
    best = min(evaluated, key=lambda document: document.best_by, default=None)
    return {"epochs": documents[-1].position.epoch, "steps": documents[-1].position.steps_done,
            "validation": (best.validation if best else None) or {}}


def _documents(checkpoints: Checkpoints) -> Iterator[CheckpointDocument]:
    for number in checkpoints.numbers():
        try:
            yield checkpoints.document(number)
        except CheckpointDamaged:
            continue


def _test_metrics(store: Store) -> dict[str, float]:
    """The figures of the network in the evaluation; empty if there is none that can be read."""
    try:
        network = json.loads(store.read(EVALUATION))["network"]
        return {name: value for name, value in network.items() if isinstance(value, float)}
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _all_metrics(run: RunSummary) -> dict[str, float]:
    return {f"{split} {name}": value for split, of in (("validation", run.validation), ("test", run.test)) for name, value in of.items()}


def _flat(section: Mapping[str, Any], *, path: str = "") -> Iterator[tuple[str, Any]]:
    """``{"train": {"seed": 1}}`` -> ``("train.seed", 1)``."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flat(value, path=f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _side_by_side(runs: Sequence[Mapping[str, Any]], *, absent: Any) -> dict[str, tuple[Any, ...]]:
    """Key -> its value in each run; keys in the order in which the runs have them."""
    keys = dict.fromkeys(key for run in runs for key in run)
    return {key: tuple(run.get(key, absent) for run in runs) for key in keys}
