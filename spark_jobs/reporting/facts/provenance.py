"""The model's provenance: versions, hashes, seeds and the shape of the ring, as labelled texts. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from sparkring.conf.schema import TrainConfig
from sparkring.pipelines.training.job.model_files import ModelCard
from sparkring.spark_jobs.reporting.facts.data import DataFacts
from sparkring.spark_jobs.reporting.facts.gather import Workspace
from sparkring.spark_jobs.reporting.facts.run import RunFacts
from sparkring.spark_jobs.reporting.facts.words import layers, moment, several

LabelledText = tuple[str, str]


def provenance(workspace: Workspace, *, run: str | None) -> tuple[LabelledText, ...]:
    """Label and text of each fact that is known."""
    return (*(_of_data(workspace.data) if workspace.data else ()),
            *(_of_run(workspace.run, workspace.learned, name=run or "") if workspace.run else ()),
            *(_of_model(workspace.card) if workspace.card else ()))


def _of_data(data: DataFacts) -> Iterator[LabelledText]:
    yield "dataset version", f"{data.version}" + (f", after version {data.parent}" if data.parent else "")
    yield "content id", data.content_id
    yield "recipe id", data.recipe_id
    yield "prepared", f"{data.created_at} by sparkring {data.code_version}"
    if data.split_column:
        yield "split by", data.split_column
    if data.seed is not None:
        yield "shuffle seed", str(data.seed)


def _of_run(run: RunFacts, learned: TrainConfig | None, *, name: str) -> Iterator[LabelledText]:
    yield "run", name
    if run.fold is not None:
        yield "cross-validation", f"validated on fold {run.fold}, trained on all others"
    yield "training started", moment(run.started)
    if learned:
        yield "seed of weights and row order", str(learned.seed)
    exact = learned is None or learned.strategy.kind == "exact"
    yield "ring", f"{several(run.size, 'rank')} on {run.device}" + (f", gradients by {run.reduction}" if exact else "")
    if not exact:
        yield "strategy", f"{run.reduction}; not the gradients of training on one rank"
    if run.wire != "exact":
        yield "wire", f"{run.wire}; not the gradients of training on one rank, but rounded ones, with error feedback"
    yield "lanes", str(run.lanes)
    yield "global batch", several(run.batch_rows, "row")
    if learned:
        optimizer = learned.optimizer
        rows = optimizer.scaling_rows
        rule = f" ({optimizer.scaling} rule: {optimizer.lr:g} at {several(rows, 'row')})" if rows else ""
        yield "optimizer", (f"{optimizer.name}, learning rate up to {optimizer.peak_lr(run.batch_rows):g}{rule}, {optimizer.schedule} "
                            f"schedule, {several(optimizer.warmup_steps, 'warm-up step')}")
    yield "restarts", several(len(run.generations) - 1, "restart") + f", {several(run.repeated_steps, 'step')} repeated"


def _of_model(card: ModelCard) -> Iterator[LabelledText]:
    yield "model", f"{card.model.kind}, {layers(card.model)}"
    yield "weights from", f"epoch {card.epoch}, step {card.step:,}"
    yield "weights SHA-256", card.weights_sha256
    yield "trained by", f"sparkring {card.code_version}"
