"""The graph of the file: torch's network (``torch_part.py``) between ONNX operations for the inputs and the outputs.

    km     double -> Unsqueeze -----------------+-> Concat -> numbers -+
    price  double -> Unsqueeze -----------------+                      +-> network -> number -> Gather of classes -> prediction
    city   string -> LabelEncoder -> Unsqueeze -+-> Concat -> ids -----+           -> probability
    agent  int64  -> Unsqueeze -----------------+                                  -> probabilities

Torch has no texts, so vocabularies and the names of classes are here. Names of inner values have a prefix, since a column may have any
name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper
from torch import nn

from sparkring.errors import ExportRefused
from sparkring.pipelines.data.dataset.preprocessing import ClassType, Preprocessing
from sparkring.pipelines.training.job.model_files import ModelCard
from sparkring.spark_jobs.exporting.encoders import IDS, NUMBERS, TableEncoder, encoder_of
from sparkring.spark_jobs.exporting.network import AnsweringNetwork
from sparkring.spark_jobs.exporting.signature import LOGITS, METADATA, Input, Kind, Signature
from sparkring.spark_jobs.exporting.torch_part import OLDEST_OPSET, first_line, write_network
from sparkring.spark_jobs.scoring.columns import NATS, PREDICTED, PREDICTION, PROBABILITIES, PROBABILITY, RIGHT

MOST_BYTES = (1 << 31) - (1 << 20)
"""An ONNX file is one message of protocol buffers, which holds less than 2 GiB."""
_ML_OPSET = 3
_FRONT, _NETWORK, _BACK = "inputs/", "network/", "outputs/"
_TYPES: dict[Kind, int] = {"number": TensorProto.DOUBLE, "text": TensorProto.STRING, "id": TensorProto.INT64,
                           "pixels": TensorProto.UINT8, "tokens": TensorProto.INT64}
_CLASSES: dict[ClassType, int] = {"string": TensorProto.STRING, "tinyint": TensorProto.INT8, "smallint": TensorProto.INT16,
                                  "int": TensorProto.INT32, "bigint": TensorProto.INT64}


def write_graph(network: nn.Module, card: ModelCard, signature: Signature, *, opset: int) -> onnx.ModelProto:
    """Write a trained network as an ONNX model that takes and answers what the signature says.

    Args:
        network: In evaluation mode, on the CPU.
        card: The model's card.
        signature: Of this card; it becomes the model's metadata.
        opset: Version of ONNX's operations.
    Returns:
        The model, checked by ONNX's own checker.
    Raises:
        ExportRefused: torch or ONNX cannot write this network or this opset, or it is too large.
    """
    size = sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
    if size > MOST_BYTES:
        raise ExportRefused(f"model {card.name} has {size / 1e9:.1f} GB of weights, but an ONNX file holds less than 2 GiB; export a "
                            "smaller model.")
    encoder = encoder_of(card, [each.name for each in signature.inputs if each.kind == "number"])
    inner = onnx.compose.add_prefix(write_network(AnsweringNetwork(network, encoder, card).eval(), card, signature, opset=opset), _NETWORK)
    front = _table_front(signature.inputs, card.preprocessing) if isinstance(encoder, TableEncoder) else [
        helper.make_node("Identity", [signature.inputs[0].name], [_NETWORK + encoder.takes[0]])]
    back, constants = _back(signature, card.preprocessing)
    logits = helper.np_dtype_to_tensor_dtype(np.dtype(str(next(network.parameters()).dtype).removeprefix("torch.")))
    graph = helper.make_graph([*front, *inner.graph.node, *back], "sparkring", list(map(_input, signature.inputs)),
                              _outputs(signature, card.preprocessing, logits), initializer=[*inner.graph.initializer, *constants])
    model = helper.make_model(graph, ir_version=inner.ir_version, producer_name="sparkring", functions=list(inner.functions),
                              opset_imports=[*inner.opset_import, helper.make_opsetid("ai.onnx.ml", _ML_OPSET)])
    helper.set_model_props(model, {METADATA: signature.model_dump_json()})
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportRefused(f"the graph of {card.name} is no valid ONNX of opset {opset}: {first_line(error)}; choose another opset, e.g. "
                            f"{OLDEST_OPSET}.") from error
    return model


def _table_front(inputs: Sequence[Input], fitted: Preprocessing) -> Iterator[onnx.NodeProto]:
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
    """1 + the position of a text in the vocabulary; 0 for any other. The text of a null stands there too, since there must be an entry."""
    return helper.make_node("LabelEncoder", [text.name], [id_name], domain="ai.onnx.ml", default_int64=0,
                            keys_strings=[*vocabulary, text.missing or ""], values_int64s=[*range(1, len(vocabulary) + 1), 0])


def _back(signature: Signature, fitted: Preprocessing) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Give the answers their names; a class is found by its number."""
    of_classes = signature.task == "multiclass"
    nodes = [helper.make_node("Identity", [_NETWORK + name], [name]) for name in signature.outputs
             if not (of_classes and name == PREDICTION)]
    if not of_classes:
        return nodes, []
    kind = _CLASSES[fitted.class_type]
    values = np.array(fitted.classes, object if kind == TensorProto.STRING else helper.tensor_dtype_to_np_dtype(kind))
    classes = onnx.numpy_helper.from_array(values, f"{_BACK}classes")
    return [*nodes, helper.make_node("Gather", [classes.name, _NETWORK + PREDICTION], [PREDICTION])], [classes]


def _input(each: Input) -> onnx.ValueInfoProto:
    shape: list[str | int] = ["length"] if each.kind == "tokens" else list(each.shape)
    return helper.make_tensor_value_info(each.name, _TYPES[each.kind], ["batch", *shape], doc_string=each.meaning)


def _outputs(signature: Signature, fitted: Preprocessing, logits: int) -> list[onnx.ValueInfoProto]:
    """The outputs; ``logits`` is the type of the network's."""
    vocabulary = fitted.tokens.vocabulary if fitted.tokens else 0
    known: dict[str, tuple[int, tuple[str | int, ...]]] = {
        PREDICTION: (_CLASSES[fitted.class_type] if signature.task == "multiclass" else TensorProto.DOUBLE, ()),
        PROBABILITY: (TensorProto.DOUBLE, ()), PROBABILITIES: (TensorProto.DOUBLE, (len(fitted.classes),)),
        LOGITS: (logits, ("length", vocabulary)),
        NATS: (TensorProto.DOUBLE, ()), PREDICTED: (TensorProto.INT32, ()), RIGHT: (TensorProto.INT32, ())}
    return [helper.make_tensor_value_info(name, known[name][0], ["batch", *known[name][1]]) for name in signature.outputs]
