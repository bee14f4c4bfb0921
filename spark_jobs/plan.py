"""``sparkring plan``: the layout of stages, replicas and schedule with the shortest step, on these machines or on paper.

    measured    a short ring times every block at two sizes of micro-batch, sums and hops; it trains nothing and reads no row
    on paper    --world 512 --link 25Gb --device K80: from counted operations and published figures, without Spark
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from sparkring.conf.schema import Config
from sparkring.errors import ConfigError
from sparkring.output_file import require_writable_file
from sparkring.pipelines.data.dataset.folds import require_a_fold
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.parallel.planner.enumerate import Constraints, ring_sizes
from sparkring.pipelines.parallel.planner.paper import Assumptions
from sparkring.pipelines.parallel.planner.planner import Plan, describe, one_each, plan
from sparkring.spark_jobs.auto_layout import layout_constraints
from sparkring.spark_jobs.run.identity import normalises_rows
from sparkring.spark_jobs.spark.progress import SILENT, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PICTURE = "plan.svg"


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One layout of the table."""

    layout: str
    num_ranks: int
    micro_batches: int
    step_s: float | None
    """Predicted seconds of a step; None if the layout cannot be used."""
    memory_gb: tuple[float, ...]
    """(stages,) predicted memory of a rank."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class PlanResult:
    """The predictions for one config."""

    world: int
    batch_rows: int
    rows: tuple[PlanRow, ...]
    """The best layout of each shape and schedule, the fastest first."""
    tried: int
    """Number of layouts that were predicted."""
    suggestion: str
    """A ``train`` section as YAML; empty if no layout can be used."""
    assumptions: tuple[str, ...]
    picture: str | None = None
    """File with the scaling curve."""


def plan_measured(config: Config, *, spark: SparkSession | None = None, progress: Progress = SILENT) -> PlanResult:
    """Measure on the ranks of the config's ring, and plan for up to that many ranks.

    Args:
        config: Names the dataset version, the model and the ring.
        spark: The session for the ring; default: the active one, or a new one from ``config.spark``.
        progress: Receives reports.
    Raises:
        DatasetVersionNotFound: there is no such version.
    """
    from sparkring.pipelines.training.profiling.fit import measured
    from sparkring.pipelines.training.profiling.profile import profile_rank, profile_rows
    from sparkring.spark_jobs.ring import run_ring
    from sparkring.spark_jobs.spark.session import spark_session

    dataset, manifest, config = _dataset(config)
    num_ranks = config.train.num_ranks
    session = spark_session(config.spark, app_name=f"sparkring plan {config.name}", given=spark)
    with progress.stage("measure"):
        ranks = run_ring(profile_rank, config.model_dump(mode="json"), dataset.url, manifest.version, num_ranks=num_ranks, spark=session,
                         config=config.train.ring)
    model, cluster = measured(config, manifest, ranks)
    few, many = profile_rows(config)
    plans = plan(model, cluster, world=num_ranks, batch_rows=config.train.step_rows, fixed=_fixed(config))
    return _table(plans, config, world=num_ranks, assumptions=(
        f"blocks were timed on {num_ranks} ranks at once, with {few} and {many} rows, {config.train.ring.threads_per_rank} threads a rank",
        f"a rank may take {cluster.memory_bytes / 1e9:.3g} GB, of which {cluster.process_bytes / 1e9:.3g} GB are for its process and rows"))


def plan_on_paper(config: Config, assumed: Assumptions, *, world: int, picture: Path | None = None) -> PlanResult:
    """Plan for machines on paper.

    Args:
        config: Names the dataset version and the model; its batch is the global one for every number of ranks.
        assumed: The machines.
        world: Number of ranks.
        picture: File for the scaling curve; default: ``plan.svg`` in the working directory.
    Raises:
        ConfigError: ``world`` is below 1, or the picture cannot be written.
        DatasetVersionNotFound: there is no such version.
    """
    if world < 1:
        raise ConfigError(f"--world {world} asks for no rank; give a number from 1 up.")
    path = picture or Path(PICTURE)
    require_writable_file(path)
    from sparkring.pipelines.training.profiling.fit import on_paper
    from sparkring.spark_jobs.reporting.charts.plan import Scaling, scaling_file

    _, manifest, config = _dataset(config)
    model, cluster = on_paper(config, manifest, assumed), assumed.cluster()
    plans = plan(model, cluster, world=world, batch_rows=config.train.step_rows, fixed=_fixed(config))
    path.write_text(scaling_file([Scaling(num_ranks=count, best_s=_best(plans, count), plain_s=_best(plans, count, plain=True))
                                  for count in ring_sizes(world)], title=f"{config.name} on {assumed.device.name}"), encoding="utf-8")
    return _table(plans, config, world=world, assumptions=tuple(assumed.lines()), picture=str(path))


def _dataset(config: Config) -> tuple[Dataset, Manifest, Config]:
    """The dataset, the version to plan for, and the config with a batch that fits its rows."""
    dataset = Dataset(config.dataset)
    manifest = dataset.manifest(config.dataset_version, fold=config.fold)
    require_a_fold(manifest, dataset.url)
    return dataset, manifest, config.fitted_to(manifest.splits["train"].rows)


def _fixed(config: Config) -> Constraints:
    """The limits that ``auto`` would obey; a layout named in the config is no limit, since it is to be compared with others."""
    train = config.train
    return layout_constraints(train, lanes=train.lanes) if train.parallel.auto else Constraints(lanes=train.lanes)


def _best(plans: Sequence[Plan], num_ranks: int, *, plain: bool = False) -> float:
    """The shortest step on exactly ``num_ranks`` ranks; infinite if no layout can be used."""
    return min((each.seconds for each in plans
                if each.candidate.num_ranks == num_ranks and (not plain or each.candidate.num_stages == 1)), default=math.inf)


def _table(plans: Sequence[Plan], config: Config, *, world: int, assumptions: tuple[str, ...], picture: str | None = None) -> PlanResult:
    usable = bool(plans) and math.isfinite(plans[0].seconds)
    batch_norm = normalises_rows(config)
    note = "batch normalisation is over a micro-batch: changing train.parallel.micro_batches changes the training"
    return PlanResult(
        world=world, batch_rows=config.train.step_rows, tried=len(plans), picture=picture,
        assumptions=(*assumptions, note) if batch_norm else assumptions,
        rows=tuple(_row(each) for each in one_each(plans)),
        suggestion=_suggestion(plans[0], name_micro_batches=batch_norm) if usable else "")


def _suggestion(best: Plan, *, name_micro_batches: bool) -> str:
    """The section to paste. It names the number of micro-batches even where the default would do, if training depends on it."""
    section = best.section()
    if name_micro_batches:
        section["parallel"] = {"micro_batches": best.candidate.micro_batches, **section["parallel"]}  # type: ignore[dict-item]
    return yaml.safe_dump({"train": section}, sort_keys=False, default_flow_style=None)


def _row(each: Plan) -> PlanRow:
    return PlanRow(layout=describe(each.candidate), num_ranks=each.candidate.num_ranks, micro_batches=each.candidate.micro_batches,
                   step_s=each.seconds if math.isfinite(each.seconds) else None,
                   memory_gb=tuple(memory.total / 1e9 for memory in each.prediction.memory), reason=each.reason)
