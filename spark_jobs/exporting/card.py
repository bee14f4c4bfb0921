"""The model card: one page of Markdown about a model, its data, its quality, its limits, and the use of its file. Pure.

Source: Mitchell et al., "Model cards for model reporting", FAT* 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from sparkring.conf.schema import Config, Task
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.training.evaluation.intervals import auc_interval, share_interval
from sparkring.pipelines.training.job.model_files import ModelCard
from sparkring.spark_jobs.exporting.check import Agreement
from sparkring.spark_jobs.exporting.limits import limits
from sparkring.spark_jobs.exporting.signature import Input, Kind, Signature
from sparkring.spark_jobs.exporting.snippet import snippet
from sparkring.spark_jobs.reporting.facts import words
from sparkring.spark_jobs.reporting.facts.data import data_facts
from sparkring.spark_jobs.reporting.facts.gather import Workspace
from sparkring.spark_jobs.reporting.facts.provenance import provenance
from sparkring.spark_jobs.reporting.facts.quality import MeanQuality, MetricColumn, ModelQuality

TYPES: dict[Kind, str] = {"number": "float64", "text": "string", "id": "int64", "pixels": "uint8", "tokens": "int64"}
_MEANINGS = {
    "probability": "`probability` (float64)", "prediction": "`prediction`, the likeliest class",
    "probabilities": "`probabilities` (float64, one a class)", "logits": "`logits` (of each next token)",
    "nats": "`nats` (float64, the cost of the row)", "tokens_predicted": "`tokens_predicted` (int32)",
    "tokens_right": "`tokens_right` (int32)"}


@dataclass(frozen=True, kw_only=True)
class WrittenFile:
    """The exported file."""

    name: str
    bytes: int
    sha256: str
    opset: int
    signature: Signature
    agreement: Agreement


def render_card(file: WrittenFile, card: ModelCard, manifest: Manifest, workspace: Workspace, config: Config) -> str:
    """Return the model card as Markdown; the same facts give the same text.

    Args:
        file: The exported file.
        card: The model's own card.
        manifest: The dataset version that it was trained on.
        workspace: What is known of its run and its evaluation.
        config: The config of the run.
    """
    data = data_facts(manifest)
    known = _of_this_model(replace(workspace, data=data, card=card))
    environment = Environment(loader=FunctionLoader(_template), autoescape=False, undefined=StrictUndefined,  # noqa: S701 - Markdown
                              trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(count=words.count, metric=words.metric, share=words.share, layers=words.layers, code=words.code,
                               cell=words.cell, shape=_shape, missing=_missing, interval=_interval, mean_interval=_mean_interval)
    return environment.get_template("model_card.md.j2").render(
        name=card.name, card=card, purpose=_purpose(card, manifest), file=file.name, bytes=file.bytes, sha256=file.sha256, opset=file.opset,
        signature=file.signature, agreement=file.agreement, types=TYPES, data=data,
        query=str(manifest.recipe.get("query", "")).rstrip(),
        answers=", ".join(_meanings(card.task)[name] for name in file.signature.outputs) + ".",
        snippet=snippet(file.name, file.signature, card.preprocessing), quality=known.quality, mean_quality=known.mean_quality,
        limits=limits(card, manifest, known), provenance=provenance(known, run=config.run))


def _meanings(task: Task) -> dict[str, str]:
    """What each output is."""
    return _MEANINGS | ({"prediction": "`prediction` (float64), in the label's own units"} if task == "regression" else {})


def _of_this_model(workspace: Workspace) -> Workspace:
    """Without an evaluation that is of earlier weights."""
    assert workspace.card is not None
    weights = workspace.card.weights_sha256
    return replace(workspace, quality=workspace.quality if workspace.quality and workspace.quality.weights_sha256 == weights else None,
                   mean_quality=workspace.mean_quality if workspace.mean_quality and workspace.mean_quality.weights_sha256 == weights
                   else None)


def _purpose(card: ModelCard, manifest: Manifest) -> str:
    match card.task:
        case "binary":
            return f"This model predicts the probability that {words.code(manifest.label)} is 1."
        case "multiclass":
            return f"This model predicts {words.code(manifest.label)}, one of {len(card.preprocessing.classes)} classes."
        case "regression":
            return f"This model predicts {words.code(manifest.label)}, a number."
        case "next_token":
            return "This model predicts each next token of a text."
        case "masked_tokens":
            return "This model predicts the masked tokens of a text."


def _shape(each: Input) -> str:
    sizes = [str(size) for size in each.shape]
    if each.kind == "tokens":
        sizes[0] = f"up to {sizes[0]}"
    return f"({', '.join(['rows', *sizes])}{',' if not sizes else ''})"


def _missing(each: Input) -> str:
    if each.kind == "number":
        return "NaN"
    if each.kind == "text":
        return f'`"{each.missing}"`'
    return "0" if each.kind == "id" else ""


def _interval(model: ModelQuality[Any], column: MetricColumn) -> str:
    if column.metric != "auc" or model.key == "base_rate":
        return ""
    figures = model.metrics
    negatives = figures.rows - figures.positives
    if not (figures.positives and negatives):
        return ""
    return _bracketed(auc_interval(figures.auc, positives=figures.positives, negatives=negatives))


def _mean_interval(figures: Mapping[str, float], name: str, quality: MeanQuality) -> str:
    if name != "accuracy" or quality.counted != "rows":  # tokens of a text depend on each other
        return ""
    return _bracketed(share_interval(figures[name], count=int(figures["rows"])))


def _bracketed(interval: tuple[float, float]) -> str:
    return f" ({interval[0]:.4f} to {interval[1]:.4f})"


def _template(name: str) -> str:
    return resources.files("sparkring.spark_jobs.exporting").joinpath(name).read_text(encoding="utf-8")


