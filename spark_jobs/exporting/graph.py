"""The ONNX graph: torch writes the network (``network.py``), and ONNX operations of the inputs' and outputs' own go around it.

    km     double -> Unsqueeze -----------------+-> Concat -> numbers -+
    price  double -> Unsqueeze -----------------+                      +-> network -> number -> Gather of classes -> prediction
    city   string -> LabelEncoder -> Unsqueeze -+-> Concat -> ids -----+           -> probability
    agent  int64  -> Unsqueeze -----------------+                                  -> probabilities

Torch has no texts, so vocabularies and the names of classes are here. The names of torch's values begin with ``network/``, since a
column may have any name.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import onnx
import onnxscript  # noqa: F401 (torch's exporter needs it, and would raise an error of its own)
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn
from torch.export import Dim

from sparkring.errors import ExportRefused
from sparkring.pipelines.data.dataset.preprocessing import ClassType, Preprocessing
from sparkring.pipelines.training.job.model_files import ModelCard
from sparkring.spark_jobs.exporting.network import IDS, NUMBERS, AnsweringNetwork, TableEncoder, encoder_of
from sparkring.spark_jobs.exporting.signature import LOGITS, METADATA, Input, Kind, Signature
from sparkring.spark_jobs.scoring.columns import NATS, PREDICTED, PREDICTION, PROBABILITIES, PROBABILITY, RIGHT

OPSET = 18
"""The default: the oldest that torch writes, so the one that most runtimes take."""
MOST_BYTES = (1 << 31) - (1 << 20)
"""A file of ONNX is one message of protocol buffers, which holds less than 2 GiB."""
_ML_OPSET = 3
_NETWORK, _FRONT, _BACK = "network/", "inputs/", "outputs/"
"""Prefixes of the names of inner values."""

_TYPES: dict[Kind, int] = {"number": TensorProto.DOUBLE, "text": TensorProto.STRING, "id": TensorProto.INT64,
                           "pixels": TensorProto.UINT8, "tokens": TensorProto.INT64}
_CLASSES: dict[ClassType, int] = {"string": TensorProto.STRING, "tinyint": TensorProto.INT8, "smallint": TensorProto.INT16,
                                  "int": TensorProto.INT32, "bigint": TensorProto.INT64}


def write_graph(network: nn.Module, card: ModelCard, signature: Signature, *, opset: int) -> onnx.ModelProto:
    """Write a trained network as an ONNX model that takes and answers what the signature says.

    Args:
        network: In evaluation mode, on the CPU.
        card: The model's card.
        signature: Of this card.
        opset: Version of ONNX's operations, from ``OPSET`` up.
    Returns:
        The model, checked by ONNX's own checker.
    Raises:
        ExportRefused: torch or ONNX cannot write this network or this version, or it is too large.
    """
    size = sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
    if size > MOST_BYTES:
        raise ExportRefused(f"model {card.name} has {size / 1e9:.1f} GB of weights, but one ONNX file holds less than 2 GiB; export a "
                            "smaller model.")
    newest = onnx.defs.onnx_opset_version()
    if not OPSET <= opset <= newest:
        raise ExportRefused(f"opset {opset} cannot be written, the installed onnx and torch write {OPSET} to {newest}; choose one of these.")
    numbers = tuple(each.name for each in signature.inputs if each.kind == "number")
    encoder = encoder_of(card, numbers)
    whole = AnsweringNetwork(network, encoder, card).eval()
    inner = _torch_part(whole, card, signature, opset)
    front = list(_front(signature.inputs, card.preprocessing)) if isinstance(encoder, TableEncoder) else [
        helper.make_node("Identity", [each.name], [_NETWORK + taken]) for each, taken in zip(signature.inputs, encoder.takes, strict=True)]
    back, initializers = _back(signature, card.preprocessing)
    graph = helper.make_graph(
        [*front, *inner.graph.node, *back], "sparkring", [_input(each) for each in signature.inputs], 
        _outputs(signature, card.preprocessing, helper.np_dtype_to_tensor_dtype(np.dtype(str(whole.dtype).removeprefix('torch.')))),
        initializer=[*inner.graph.initializer, *initializers], doc_string=f"{card.name}, trained on version {card.dataset_version} of "
        f"its dataset; weights {card.weights_sha256[:16]}")
    model = helper.make_model(
        graph, ir_version=inner.ir_version, producer_name="sparkring", functions=list(inner.functions),
        opset_imports=[*inner.opset_import, helper.make_opsetid("ai.onnx.ml", _ML_OPSET)])
    helper.set_model_props(model, {METADATA: signature.model_dump_json()})
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportRefused(f"the graph of {card.name} is no valid ONNX of opset {opset}: {_first_line(error)}; choose another opset, e.g. "
                            f"{OPSET}.") from error
    return model


def _torch_part(whole: AnsweringNetwork, card: ModelCard, signature: Signature, opset: int) -> onnx.ModelProto:
    """The network as torch writes it; its values are named ``network/...``, its inputs and outputs ``network/<name>``."""
    examples, dynamic = _examples(whole, card, signature)
    try:
        with _quiet():
            program = torch.onnx.export(
                whole, examples, dynamo=True, verbose=False, opset_version=opset, input_names=list(whole.encoder.takes),
                output_names=list(signature.outputs), dynamic_shapes=(dynamic,))
    except Exception as error:
        what = f"model.network={card.model.network}" if card.model.network else f"the {card.model.kind} network"
        raise ExportRefused(f"torch cannot write {what} as ONNX of opset {opset}: {_first_line(error)}; docs/how-to/export.md says what a "
                            "network may do.") from error
    assert program is not None
    written: onnx.ModelProto = onnx.compose.add_prefix(program.model_proto, _NETWORK)
    found = {entry.domain: entry.version for entry in written.opset_import}.get("")
    if found != opset:  # torch says so in its log only
        raise ExportRefused(f"torch {torch.__version__} wrote opset {found} where {opset} was asked for; choose {found}.")
    return written


def _examples(whole: AnsweringNetwork, card: ModelCard, signature: Signature) -> tuple[tuple[Tensor, ...], tuple[dict[int, object], ...]]:
    """Tensors of two rows for torch to follow through the network, and their axes that may have any length."""
    rows, axes = 2, {0: Dim.DYNAMIC}
    kinds = [each.kind for each in signature.inputs]
    if isinstance(whole.encoder, TableEncoder):
        tensors = {NUMBERS: torch.zeros((rows, kinds.count("number")), dtype=torch.float64),
                   IDS: torch.zeros((rows, kinds.count("text") + kinds.count("id")), dtype=torch.int64)}
        return tuple(tensors[name] for name in whole.encoder.takes), tuple(axes for _ in whole.encoder.takes)
    dtype = torch.uint8 if kinds == ["pixels"] else torch.int64
    if kinds == ["tokens"] and card.model.network is None:  # the shipped decoder takes shorter rows, another network perhaps not
        axes = {**axes, 1: Dim.DYNAMIC}
    return (torch.zeros((rows, *signature.inputs[0].shape), dtype=dtype),), (axes,)


def _front(inputs: Sequence[Input], fitted: Preprocessing) -> Iterator[onnx.NodeProto]:
    """Look texts up, and put the columns side by side: the numbers in one tensor, the ids in another."""
    vocabularies = {feature.column: feature.vocabulary for feature in fitted.categorical}
    columns: dict[str, list[str]] = {NUMBERS: [], IDS: []}
    axis = f"{_FRONT}axis"
    yield helper.make_node("Constant", [], [axis], value_ints=[1])
    for each in inputs:
        source, column = each.name, f"{_FRONT}{each.name}/column"
        if each.kind == "text":
            source = f"{_FRONT}{each.name}/id"
            yield _look_up(each, vocabularies[each.name], source)
        yield helper.make_node("Unsqueeze", [source, axis], [column])
        columns[NUMBERS if each.kind == "number" else IDS].append(column)
    for name, side_by_side in columns.items():
        if side_by_side:
            yield helper.make_node("Concat", side_by_side, [_NETWORK + name], axis=1)


def _look_up(text: Input, vocabulary: Sequence[str], id_name: str) -> onnx.NodeProto:
    """1 + the position of a text in the vocabulary; 0 for any other text. An entry more says so, since there must be one."""
    return helper.make_node("LabelEncoder", [text.name], [id_name], domain="ai.onnx.ml", default_int64=0,
                            keys_strings=[*vocabulary, text.missing or ""], values_int64s=[*range(1, len(vocabulary) + 1), 0])


def _back(signature: Signature, fitted: Preprocessing) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Give the answers their names; a class is found by its number."""
    nodes = [helper.make_node("Identity", [_NETWORK + name], [name]) for name in signature.outputs if name != PREDICTION]
    if PREDICTION not in signature.outputs:
        return nodes, []
    values = [name.encode() if fitted.class_type == "string" else int(name) for name in fitted.classes]
    classes = helper.make_tensor(f"{_BACK}classes", _CLASSES[fitted.class_type], [len(values)], values)
    return [*nodes, helper.make_node("Gather", [classes.name, _NETWORK + PREDICTION], [PREDICTION])], [classes]


def _input(each: Input) -> onnx.ValueInfoProto:
    shape: list[str | int] = ["length"] if each.kind == "tokens" else list(each.shape)
    return helper.make_tensor_value_info(each.name, _TYPES[each.kind], ["batch", *shape], doc_string=each.meaning)


def _outputs(signature: Signature, fitted: Preprocessing, logits: TensorProto.DataType) -> list[onnx.ValueInfoProto]:
    vocabulary = fitted.tokens.vocabulary if fitted.tokens else 0
    known: dict[str, tuple[int, tuple[str | int, ...]]] = {
        PREDICTION: (_CLASSES[fitted.class_type], ()), PROBABILITY: (TensorProto.DOUBLE, ()),
        PROBABILITIES: (TensorProto.DOUBLE, (len(fitted.classes),)), LOGITS: (logits, ("length", vocabulary)),
        NATS: (TensorProto.DOUBLE, ()), PREDICTED: (TensorProto.INT32, ()), RIGHT: (TensorProto.INT32, ())}
    return [helper.make_tensor_value_info(name, known[name][0], ["batch", *known[name][1]]) for name in signature.outputs]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep to itself what torch's exporter logs and warns of on every export."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _first_line(error: BaseException) -> str:
    """The first line of the innermost cause that says something, without a full stop or a semicolon."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".").replace("; ", ", ")
