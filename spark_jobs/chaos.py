"""``sparkring chaos CONFIG``: train the user's own job twice, undisturbed and under faults, and compare the two runs.

    <workspace>/chaos/runs/<run>-undisturbed         trained once, reused by later calls
    <workspace>/chaos/runs/<run>-seed-<seed>-<n>     the n-th run under that seed's faults
                         .../chaos.json              the result that the command prints

<run> is the name that ``sparkring train`` gives the job. The user's own runs are not touched, and the dataset is only read.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load

from sparkring.conf.schema import Config, TrainConfig
from sparkring.errors import ConfigError, ReceiptError, SparkringError
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.data.stores.volume import VolumeStore
from sparkring.pipelines.training.events.writer import event_files, read_events
from sparkring.spark_jobs.fault_injection.faults import ENDING, KINDS, Fault, draw
from sparkring.spark_jobs.fault_injection.injector import strikes, train_rank_under_faults
from sparkring.spark_jobs.fault_injection.losses import Losses, losses
from sparkring.spark_jobs.run.identity import name_of
from sparkring.spark_jobs.spark.progress import SILENT, Progress
from sparkring.spark_jobs.stored.audit import audit
from sparkring.spark_jobs.train import TrainResult, train

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = "chaos"
OUTCOME = "chaos.json"
DEADLINE_S = 10.0
"""Seconds that ranks wait for a rank that hangs. A job's own deadline allows for slow days; each hang would take that long."""


@dataclass(frozen=True, kw_only=True)
class ChaosResult:
    """The effect of faults on a job."""

    url: str
    """The run under faults."""
    survived: bool
    """Whether the run ended by itself."""
    failure: str
    """The error that ended it; empty if it survived."""
    planned: int
    struck: int
    """Faults that have happened."""
    kinds: dict[str, int]
    """The number of faults that struck, by kind."""
    restarts: int
    """Generations of the ring after the first."""
    checkpoint_interval: int
    rows_lost: int
    rows_repeated: int
    steps_redone: int
    steps_redone_max: int
    """The most steps redone after one strike."""
    resume_s_median: float | None
    """From a strike to the end of the next step; None if no fault ended a generation."""
    resume_s_max: float | None
    goodput: float
    """Share of the wall-clock time spent on steps that count."""
    audit: str
    """``green``, or the error of ``sparkring audit``."""
    validation: dict[str, float]
    """Held-out metrics of the run under faults."""
    undisturbed: dict[str, float]
    """Held-out metrics of the undisturbed run."""
    weights_difference: float | None
    """The largest relative difference of a tensor to the undisturbed run's; None if there is no model to compare."""
    losses: Losses
    """The cost of each strike."""


def chaos(config: Config, *, num_faults: int = 20, seed: int = 1, kinds: Sequence[str] = KINDS, deadline_s: float = DEADLINE_S,
          spark: SparkSession | None = None, progress: Progress = SILENT) -> ChaosResult:
    """Train under faults, and measure what was lost.

    Args:
        config: The user's job, whose dataset version must exist.
        num_faults: The number of faults, spread evenly over the run.
        seed: Draws the time, the rank and the kind of each fault.
        kinds: The kinds to draw from; see ``faults.py``.
        deadline_s: Seconds that ranks wait for a rank that hangs.
        spark: The session; default the active one, or one made from ``config.spark``.
        progress: Where to report.
    Raises:
        ConfigError: there is no such kind of fault, the run has fewer steps than faults, or the workspace is a volume.
        SparkringError: the undisturbed run fails.
    """
    faults = draw(num_faults, seed=seed, kinds=kinds)
    if isinstance(open_store(config.workspace), VolumeStore):
        raise ConfigError(f"{config.workspace} is a volume, and there a rank without a token cannot claim the fault that strikes it; set "
                          "workspace to a folder of the cluster's disk, or to other storage, for this command.")
    manifest = Dataset(config.dataset).manifest(config.dataset_version, fold=config.fold)
    config = _elsewhere(config, manifest)
    calm = config.changed(run=f"{config.run}-undisturbed")
    progress.note("chaos: first without faults, to compare with")
    expected = train(calm, spark=spark, progress=progress)
    if expected.steps <= num_faults:
        raise ConfigError(f"{num_faults} faults need a run of more steps than that, this one has {expected.steps}; "
                          "ask for fewer, or set train.epochs.")
    struck = config.changed(run=_free_name(config, f"{config.run}-seed-{seed}"),
                            train=hardened(config.train, num_faults=num_faults, deadline_s=deadline_s))
    progress.note(f"chaos: now under {num_faults} faults, {_counted(faults)}")
    work = partial(train_rank_under_faults, faults=[fault.model_dump() for fault in faults])
    try:
        trained, failure = train(struck, spark=spark, progress=progress, work=work), ""
    except SparkringError as error:
        trained, failure = None, str(error).partition("\n")[0]
    result = outcome(struck, calm, trained, expected, planned=num_faults, failure=failure)
    open_store(struck.run_url).put(OUTCOME, json.dumps(asdict(result), indent=1).encode())
    return result


def hardened(train_config: TrainConfig, *, num_faults: int, deadline_s: float) -> TrainConfig:
    """The same training, prepared for many faults: none of them ends it for good, and no wait is long."""
    recovery = train_config.recovery.changed(restarts=num_faults + 1, leave_out_after=num_faults + 1)
    ring = train_config.ring.changed(deadline_s=min(deadline_s, train_config.ring.deadline_s))
    return train_config.changed(recovery=recovery, ring=ring)


def outcome(struck: Config, calm: Config, trained: TrainResult | None, expected: TrainResult, *, planned: int,
            failure: str = "") -> ChaosResult:
    """Compare the run of ``struck`` with that of ``calm``; ``trained`` is None if it failed."""
    rows = Dataset(struck.dataset).manifest(struck.dataset_version, fold=struck.fold).splits["train"].rows
    happened = strikes(open_store(struck.run_url))
    lost = losses(read_events(struck.run_url), happened, rows_per_epoch=rows)
    ended = [one for one in lost.resumptions if one.kind in ENDING]
    seconds = [one.resume_s for one in ended if one.resume_s is not None]
    again = [one.steps_redone for one in ended]
    return ChaosResult(
        url=struck.run_url, survived=trained is not None, failure=failure, planned=planned, struck=len(happened),
        kinds=dict(Counter(strike.kind for strike in happened)), restarts=_generations(struck) - 1,
        checkpoint_interval=struck.train.checkpoint_steps, rows_lost=lost.rows_lost, rows_repeated=lost.rows_repeated,
        steps_redone=sum(again), steps_redone_max=max(again, default=0),
        resume_s_median=statistics.median(seconds) if seconds else None, resume_s_max=max(seconds, default=None),
        goodput=lost.goodput, audit=_verdict(struck), validation=trained.validation if trained else {}, undisturbed=expected.validation,
        weights_difference=weights_difference(struck, calm) if trained else None, losses=lost)


def weights_difference(one: Config, other: Config) -> float:
    """The largest difference of a tensor between two runs' models: its norm over the other's norm."""
    from sparkring.pipelines.training.job.model_files import load_card, load_weights  # imports torch

    mine, theirs = (load(load_weights(config.run_url, load_card(config.run_url))) for config in (one, other))
    return max((float(np.linalg.norm(mine[name] - theirs[name]) / (np.linalg.norm(theirs[name]) or 1.0)) for name in theirs), default=0.0)


def _elsewhere(config: Config, manifest: Manifest) -> Config:
    """The same job in a workspace of its own, on the same dataset version, with the name of its run."""
    return config.changed(workspace=f"{config.workspace}/{FOLDER}", dataset_url=config.dataset, dataset_version=manifest.version,
                          run=name_of(config, manifest))


def _free_name(config: Config, stem: str) -> str:
    """The first name of a run that is not used yet."""
    number = 1
    while event_files(f"{config.runs}/{stem}-{number}"):
        number += 1
    return f"{stem}-{number}"


def _generations(config: Config) -> int:
    return len({name.partition("-")[0] for name in event_files(config.run_url)})


def _verdict(config: Config) -> str:
    try:
        audit(config.run_url)
    except (ReceiptError, SparkringError) as error:
        return str(error)
    return "green"


def _counted(faults: Sequence[Fault]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(fault.kind for fault in faults).items()))
