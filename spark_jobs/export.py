"""``sparkring export``: a trained model as one ONNX file, checked against torch on held-out rows, and its model card.

    <run>/export/model.onnx       the network, with as much of the preprocessing as ONNX has operations for
    <run>/export/model-card.md    written last; it names the file by its hash

``sparkring score --set score.engine=onnx`` predicts with it. Export starts neither Spark nor ranks. Nothing is written before the file
has passed its check.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Any, Literal

from sparkring.conf.loading import ConfigLike, config_of_job
from sparkring.conf.schema import Config
from sparkring.errors import ConfigError
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.training.job.model_files import dataset_of, load_model
from sparkring.spark_jobs.exporting.card import WrittenFile, render_card
from sparkring.spark_jobs.exporting.check import check
from sparkring.spark_jobs.exporting.graph import write_graph
from sparkring.spark_jobs.exporting.held_out import read_held_out
from sparkring.spark_jobs.exporting.place import FILE, FOLDER, SUFFIX
from sparkring.spark_jobs.exporting.predictor import OnnxPredictor
from sparkring.spark_jobs.exporting.signature import signature_of
from sparkring.spark_jobs.exporting.torch_part import OLDEST_OPSET
from sparkring.spark_jobs.reporting.facts.gather import gather
from sparkring.spark_jobs.run.place import with_existing_run
from sparkring.spark_jobs.spark.progress import SILENT, Progress

OPSET = OLDEST_OPSET
"""The default: the one that most runtimes take."""
FORMATS = ("onnx",)
CARD = "model-card.md"


@dataclass(frozen=True)
class ExportResult:
    """The exported file."""

    path: str
    card: str
    """Address of the model card."""
    bytes: int
    sha256: str
    opset: int
    inside: tuple[str, ...]
    """The preprocessing that the file does."""
    beside: tuple[str, ...]
    """The preprocessing that is left to whoever runs it."""
    split: str
    """The held-out split on which it was compared with torch."""
    rows: int
    output: str
    """The output that came closest to its tolerance."""
    difference: float
    """Its largest difference; of values beyond 1, relative to the value."""
    tolerance: float


def export(config: ConfigLike, *, to: Literal["onnx"] = "onnx", opset: int = OPSET, output: str | os.PathLike[str] | None = None,
           progress: Progress = SILENT, **keys: Any) -> ExportResult:
    """Write the model of the run of ``config`` as one file, and its model card beside it; both replace earlier ones.

    Args:
        config: What ``load_config`` takes; names the run (see ``run/place.py``).
        to: The format.
        opset: Version of ONNX's operations.
        output: Path or URL of the file, ending in ``.onnx``; default ``<run>/export/model.onnx``.
        progress: Where to report.
        keys: Keys of the config that replace those of ``config``, e.g. ``workspace="runs/x"``.
    Raises:
        ConfigError: the run has no trained model, or the format or the output's name is none that can be written.
        ExportRefused: ONNX cannot hold this model, or the file's answers differ from torch's; nothing was written.
        DatasetError: the dataset version that the model was trained on has changed, or has no held-out rows.
        EnvironmentProblem: onnx, onnxscript or onnxruntime is not installed.
    """
    if to not in FORMATS:
        raise ConfigError(f"a model cannot be exported to {to}; choose {' or '.join(FORMATS)}.")
    config = with_existing_run(config_of_job(export, config, keys), progress=progress)
    folder, name = _place(output, config)
    with progress.stage("export", total=3) as bar:
        model, card = load_model(config.run_url)
        version = dataset_of(card)
        signature = signature_of(card, version.manifest.fields)
        bar.update(0, total=3, text="writing the graph")
        data = write_graph(model, card, signature, opset=opset).SerializeToString()
        bar.update(1, total=3, text="comparing with torch")
        predictor = OnnxPredictor(data, threads=os.cpu_count() or 1)
        agreement = check(predictor, model, card, read_held_out(card, version, signature))
        bar.update(2, total=3, text="model card")
        file = WrittenFile(name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), opset=opset, signature=signature,
                           agreement=agreement)
        page = render_card(file, card, version.manifest, gather(config), config)
        store = open_store(folder)
        store.put_pieces(name, [data])
        store.put(CARD, page.encode("utf-8", errors="replace"))
        bar.update(3, total=3)
    return ExportResult(
        path=store.path(name), card=store.path(CARD), bytes=file.bytes, sha256=file.sha256, opset=opset, inside=signature.inside,
        beside=signature.beside, split=agreement.split, rows=agreement.rows, output=agreement.output, difference=agreement.difference,
        tolerance=agreement.tolerance)


def _place(output: str | os.PathLike[str] | None, config: Config) -> tuple[str, str]:
    """Folder and name of the file."""
    if output is None:
        return f"{config.run_url}/{FOLDER}", FILE
    folder, _, name = os.fspath(output).rpartition("/")
    if not name.endswith(SUFFIX):
        raise ConfigError(f"--output {os.fspath(output)} does not end in {SUFFIX}; name the file, e.g. {FILE}.")
    return folder or ("/" if os.fspath(output).startswith("/") else "."), name
