"""``train.parallel: auto``: the planner chooses the layout from measurements on the ranks that will train.

    measure     a short ring runs before the one that trains; its results are stored beside the run
    reuse       later starts only check that their ranks are spread over machines of the same kinds as before
    choose      the fastest layout that fits memory and whose micro-batches take whole lanes; stored, too, so that
                evaluation and generation by stages can use it
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sparkring.conf.schema import Config, TrainConfig
from sparkring.conf.schema.model import ABOUT_WEIGHTS
from sparkring.conf.schema.parallel import KEPT_BY_AUTO
from sparkring.errors import DocumentDamaged
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.documents import read_document
from sparkring.pipelines.parallel.planner.enumerate import Constraints
from sparkring.pipelines.parallel.planner.planner import Plan, best_layout, describe
from sparkring.spark_jobs.spark.progress import Progress
from sparkring.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkring.pipelines.training.profiling.profile import RankProfile

PROFILE = "plan.json"
"""In the run's folder: the measurements, their subject, and the layout that was chosen last."""


class Choice(NamedTuple):
    """A config with a chosen layout."""

    config: Config
    predicted_s: float
    """Predicted seconds of a step."""


class LayoutChooser:
    """Chooses the layouts of a run, for each of its generations."""

    def __init__(self, store: Store, *, dataset_url: str, manifest: Manifest, lanes: int, progress: Progress) -> None:
        """Prepare to choose.

        Args:
            store: The run's folder.
            dataset_url: The dataset's address.
            manifest: The manifest of the dataset version.
            lanes: Number of lanes, fixed at the first start of the run.
            progress: Receives reports.
        """
        self._store, self._dataset_url, self._manifest, self._lanes, self._progress = store, dataset_url, manifest, lanes, progress

    def choose(self, config: Config, spark: SparkSession) -> Choice:
        """Measure, or reuse stored measurements, and choose.

        Args:
            config: A config with ``train.parallel: auto``; the layout takes up to ``train.num_ranks`` ranks.
            spark: The session for the ring that measures.
        Raises:
            LayoutRefused: no layout fits.
        """
        from sparkring.pipelines.training.profiling.fit import measured

        subject = profile_subject(config, self._manifest)
        ranks = self._profile(config, spark, subject)
        model, cluster = measured(config, self._manifest, ranks)
        best = best_layout(model, cluster, world=config.train.num_ranks, batch_rows=config.train.step_rows,
                           fixed=layout_constraints(config.train, lanes=self._lanes))
        self._report_other_ranks(config.train)
        self._progress.note(f"training: planned {describe(best.candidate)} of {best.candidate.micro_batches} micro-batches, "
                            f"{1e3 * best.seconds:.3g} ms a step: {best.reason}")
        train = with_layout(config.train, best)
        chosen = train.model_dump(mode="json", include={"num_ranks", "parallel"})
        self._store.put(PROFILE, json.dumps({"of": subject, "ranks": ranks, "chosen": chosen}).encode())
        return Choice(config.changed(train=train), best.seconds)

    def _report_other_ranks(self, train: TrainConfig) -> None:
        wanted = layout_constraints(train).num_ranks
        if wanted and wanted != train.num_ranks:
            but = "they are ignored" if wanted > train.num_ranks else "the others stay idle"
            self._progress.note(f"training: train.parallel.replicas={list(train.parallel.replicas)} take {wanted} ranks, and there are "
                                f"{train.num_ranks}; {but}")

    def _profile(self, config: Config, spark: SparkSession, subject: dict[str, Any]) -> Sequence[RankProfile]:
        """The measurements of the ranks, new or stored."""
        from sparkring.pipelines.training.profiling.profile import profile_rank
        from sparkring.spark_jobs.ring import run_ring

        known = known_profile(self._store, subject)
        places = [(rank["machine"], rank["hosts"][number]) for number, rank in enumerate(known)] if known else None
        with self._progress.stage("measure"):
            ranks: list[Any] = run_ring(profile_rank, config.model_dump(mode="json"), self._dataset_url, self._manifest.version, places,
                                        num_ranks=config.train.num_ranks, spark=spark, config=config.train.ring)
        return known if known and ranks[0] is None else ranks


def layout_constraints(train: TrainConfig, *, lanes: int | None = None) -> Constraints:
    """The limits that a config with ``auto`` sets."""
    asked = train.parallel
    return Constraints(micro_batches=asked.micro_batches, lanes=lanes, replicas=asked.replicas, shards=asked.shards)


def with_planned_layout(config: Config, store: Store) -> Config:
    """The config with the layout that ``auto`` chose last for its run.

    Args:
        config: The user's config; only its layout changes.
        store: The run's folder.
    Returns:
        The config unchanged if it names a layout itself, or the run has none on record.
    """
    if not config.train.parallel.auto:
        return config
    try:
        chosen = read_document(store, PROFILE, keys=("chosen",), remedy="")["chosen"]
    except (FileNotFoundError, DocumentDamaged):
        return config
    return config.changed(train=config.train.changed(**chosen))


def known_profile(store: Store, subject: dict[str, Any]) -> Sequence[RankProfile] | None:
    """Stored measurements of the same subject; None if there are none. An unreadable document counts as none: it is replaced."""
    try:
        document = read_document(store, PROFILE, keys=("of", "ranks"), remedy="")
    except (FileNotFoundError, DocumentDamaged):
        return None
    return document["ranks"] if document["of"] == subject else None


def profile_subject(config: Config, manifest: Manifest) -> dict[str, Any]:
    """Everything that a profile depends on, except the machines."""
    from sparkring.pipelines.training.profiling.profile import blocks_and_shapes, structure_digest

    train, (blocks, _) = config.train, blocks_and_shapes(config, manifest)
    return {"code_version": __version__, "content_id": manifest.content_id,
            "model": config.model.model_dump(mode="json", exclude={*ABOUT_WEIGHTS}),
            "blocks": structure_digest(blocks),
            "train": train.model_dump(mode="json", include={"num_ranks", "batch_rows", "precision", "optimizer"}),
            "ring": train.ring.model_dump(mode="json", include={"threads_per_rank", "shared_memory", "device", "allreduce", "wire"})}


def with_layout(train: TrainConfig, plan: Plan) -> TrainConfig:
    """The training section with a planned layout in place of ``auto``; settings given beside ``auto`` stay."""
    section = plan.section()
    given = train.parallel.model_dump(include=set(KEPT_BY_AUTO), exclude_none=True)
    parallel = {**section["parallel"], **given}  # type: ignore[dict-item]
    return train.changed(num_ranks=section["num_ranks"], parallel=parallel)
