"""Whether an exported file answers as torch does, on held-out rows; a file that does not is never written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sparkring.errors import ExportRefused
from sparkring.pipelines.training.job.model_files import ModelCard
from sparkring.spark_jobs.exporting.held_out import HeldOutRows
from sparkring.spark_jobs.exporting.network import answers
from sparkring.spark_jobs.exporting.predictor import OnnxPredictor
from sparkring.spark_jobs.exporting.signature import LOGITS
from sparkring.spark_jobs.scoring.columns import NATS, PREDICTION, PROBABILITIES, PROBABILITY

TOLERANCES = {PROBABILITY: 1e-5, PROBABILITIES: 1e-5, LOGITS: 1e-4, NATS: 1e-4}
"""Largest allowed difference of each output; of values beyond 1, relative to the value. Float32 in another order of operations stays
well below."""
TOLERANCE_OF_NUMBERS = 1e-4
"""The same of a predicted number, in deviations of the label."""


@dataclass(frozen=True)
class Agreement:
    """How far the file's answers are from torch's."""

    split: str
    rows: int
    output: str
    """The output with the largest share of its tolerance."""
    difference: float
    """Its largest difference; of values beyond 1 (of a number, beyond one deviation of the label), relative to the value."""
    tolerance: float


def check(predictor: OnnxPredictor, network: nn.Module, card: ModelCard, held_out: HeldOutRows) -> Agreement:
    """Compare the file with torch on held-out rows: the first alone, then all others, so that batches of two sizes are seen.

    Args:
        predictor: The file.
        network: The trained network, in evaluation mode.
        card: Its card.
        held_out: The rows.
    Raises:
        ExportRefused: the file cannot answer, or an answer differs by more than its tolerance or is not finite.
    """
    with torch.inference_mode():
        expected = [each.numpy() for each in answers(network, held_out.tensors, card)]
    found = _answers(predictor, held_out)
    label = card.preprocessing.label
    tolerances = TOLERANCES if label is None else {PREDICTION: TOLERANCE_OF_NUMBERS}
    compared = [_difference(name, found[name], known, scale=label.std if label else 1.0)
                for name, known in zip(predictor.signature.outputs, expected, strict=True) if name in tolerances]
    name, difference = max(compared, key=lambda pair: pair[1] / tolerances[pair[0]])
    if not difference <= tolerances[name]:
        raise ExportRefused(f"the ONNX file of {card.name} differs from torch by {difference:.1e} in {name} on {held_out.rows} rows of the "
                            f"{held_out.split} split, {tolerances[name]:.0e} is allowed; choose another --opset. Nothing was written.")
    return Agreement(held_out.split, held_out.rows, name, difference, tolerances[name])


def _answers(predictor: OnnxPredictor, held_out: HeldOutRows) -> dict[str, NDArray[Any]]:
    parts = [slice(0, 1), slice(1, None)] if held_out.rows > 1 else [slice(0, 1)]
    try:
        found = [predictor.run({name: array[part] for name, array in held_out.arrays.items()}) for part in parts]
    except Exception as error:  # ONNX Runtime's classes have no base of their own
        raise ExportRefused(f"ONNX Runtime fails on held-out rows: {' '.join(str(error).split())[:300]}; choose another --opset. "
                            "Nothing was written.") from error
    return {name: np.concatenate([answer[name] for answer in found]) for name in predictor.signature.outputs}


def _difference(name: str, found: NDArray[Any], expected: NDArray[Any], *, scale: float) -> tuple[str, float]:
    """The output's name and its largest difference, in units of ``scale``; infinite where a value is not finite."""
    difference = np.abs(found.astype(np.float64) - expected) / np.maximum(scale, np.abs(expected))
    return name, float(np.max(np.where(np.isfinite(difference), difference, np.inf), initial=0.0))
