"""From a torch module to ONNX, by torch's own exporter."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import onnx
import onnxscript  # noqa: F401 (torch's exporter needs it, and its own error would not name the extra)
import torch
from torch import Tensor
from torch.export import Dim

from sparkring.errors import ExportRefused
from sparkring.pipelines.training.job.model_files import ModelCard
from sparkring.spark_jobs.exporting.encoders import IDS, NUMBERS, TableEncoder
from sparkring.spark_jobs.exporting.network import AnsweringNetwork
from sparkring.spark_jobs.exporting.signature import Signature

OLDEST_OPSET = 18
"""Torch writes none that is older."""
EXAMPLE_ROWS = 2
"""Torch follows so many rows through the network; it would take one row for the only number that there may be."""


def write_network(whole: AnsweringNetwork, card: ModelCard, signature: Signature, *, opset: int) -> onnx.ModelProto:
    """Write a network with its encoder and its answers.

    Args:
        whole: In evaluation mode, on the CPU.
        card: The model's card.
        signature: Names the outputs.
        opset: Version of ONNX's operations.
    Returns:
        A model whose inputs are named as the encoder's, and whose outputs are named as the signature's.
    Raises:
        ExportRefused: torch cannot follow the network, or write this opset.
    """
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST_OPSET <= opset <= newest:
        raise ExportRefused(f"opset {opset} cannot be written, torch and the installed onnx write {OLDEST_OPSET} to {newest}; choose one "
                            "of these.")
    examples, axes = _examples(whole, card, signature)
    try:
        with _quiet():
            # Followed here: torch.onnx.export, up to torch 2.8, takes one branch of a network without a word where it cannot follow both.
            followed = torch.export.export(whole, examples, dynamic_shapes=(tuple(axes for _ in examples),), strict=False)
            program = torch.onnx.export(followed, dynamo=True, verbose=False, opset_version=opset, input_names=list(whole.encoder.takes),
                                        output_names=list(signature.outputs))
    except Exception as error:  # of many classes, from all of torch's compiler
        what = f"model.network={card.model.network}" if card.model.network else f"the {card.model.kind} network"
        raise ExportRefused(f"torch cannot write {what} as ONNX of opset {opset}: {first_line(error)}; docs/how-to/export.md says what a "
                            "network may do.") from error
    assert program is not None
    written: onnx.ModelProto = program.model_proto
    found = {entry.domain: entry.version for entry in written.opset_import}.get("")
    if found != opset:  # torch says so in its log only
        raise ExportRefused(f"torch {torch.__version__} wrote opset {found} where {opset} was asked for; choose {found}.")
    return written


def first_line(error: BaseException) -> str:
    """The first line of an error's innermost cause, as a part of a sentence."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".").replace("; ", ", ")


def _examples(whole: AnsweringNetwork, card: ModelCard, signature: Signature) -> tuple[tuple[Tensor, ...], dict[int, object]]:
    """A tensor for each that the encoder takes, and their axes that may have any length."""
    kinds = [each.kind for each in signature.inputs]
    if isinstance(whole.encoder, TableEncoder):
        tensors = {NUMBERS: torch.zeros((EXAMPLE_ROWS, kinds.count("number")), dtype=torch.float64),
                   IDS: torch.zeros((EXAMPLE_ROWS, kinds.count("text") + kinds.count("id")), dtype=torch.int64)}
        return tuple(tensors[name] for name in whole.encoder.takes), {0: Dim.DYNAMIC}
    example = torch.zeros((EXAMPLE_ROWS, *signature.inputs[0].shape), dtype=torch.uint8 if kinds == ["pixels"] else torch.int64)
    any_length = kinds == ["tokens"] and card.model.network is None  # the user's own network perhaps takes rows of one length only
    return (example,), {0: Dim.DYNAMIC, **({1: Dim.DYNAMIC} if any_length else {})}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what torch's exporter logs and warns of in every export."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
