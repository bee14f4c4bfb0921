"""Predictions by an exported file in ONNX Runtime: Arrow in, arrays out. Needs neither torch nor Spark nor the run.

    number    numbers and booleans; null -> NaN
    text      texts, whole numbers, booleans and dates, as Spark's CAST(x AS STRING) writes them; null -> the text that stands for it
    id        whole numbers, none null
    pixels    image files of the right size, none null
    tokens    the cells of a dataset version, or lists of equally many ids, none null
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
import pyarrow as pa
from numpy.typing import NDArray

from sparkring.errors import ExportRefused, SourceError, nearest
from sparkring.pipelines.data.loading.codecs import decode, uniform_arrays
from sparkring.spark_jobs.exporting.signature import METADATA, Input, Signature

Arrays = dict[str, NDArray[Any]]


class OnnxPredictor:
    """A file of ``sparkring export``, ready to predict."""

    def __init__(self, file: bytes, *, threads: int = 1) -> None:
        """Load the file.

        Args:
            file: Its bytes.
            threads: Threads of a prediction; a Spark task has one core.
        Raises:
            ExportRefused: ONNX Runtime cannot run it, or another program made it.
        """
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3  # errors only
        try:
            self._session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its classes have no base of their own
            raise ExportRefused(f"ONNX Runtime {onnxruntime.__version__} cannot load the file: {' '.join(str(error).split())[:300]}; "
                                "choose another --opset, or use a newer onnxruntime.") from error
        metadata = self._session.get_modelmeta().custom_metadata_map
        if METADATA not in metadata:
            raise ExportRefused("the ONNX file does not say how it was made; give one that `sparkring export` wrote.")
        self.signature = Signature.model_validate_json(metadata[METADATA])

    def __call__(self, rows: pa.RecordBatch) -> Arrays:
        """Predict rows.

        Args:
            rows: A column for each input of the file; others are ignored.
        Returns:
            Output name -> (rows, ...).
        Raises:
            SourceError: a column is missing, or its values are none that the input takes.
        """
        return self.run(arrays_of(rows, self.signature))

    def run(self, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
        """Predict rows that are arrays of the inputs' own types and shapes."""
        return dict(zip(self.signature.outputs, self._session.run(self.signature.outputs, dict(arrays)), strict=True))


def arrays_of(rows: pa.RecordBatch, signature: Signature) -> Arrays:
    """The arrays that a file takes, from the columns of Arrow rows; the errors are those of a prediction."""
    return {each.name: _array(_column(rows, each, signature), each) for each in signature.inputs}


def _column(rows: pa.RecordBatch, each: Input, signature: Signature) -> pa.Array:
    if each.name not in rows.schema.names:
        raise SourceError(f"the rows have no column {each.name}{nearest(each.name, rows.schema.names)}; the file of {signature.name} takes "
                          f"{', '.join(one.name for one in signature.inputs)}.")
    column = rows.column(each.name)
    if column.null_count and each.kind not in ("number", "text"):
        raise SourceError(f"column {each.name} has {column.null_count} nulls, but it is {each.meaning}; leave these rows out.")
    return column


def _array(column: pa.Array, each: Input) -> NDArray[Any]:
    match each.kind:
        case "number" if _is_number(column.type):
            return _numbers(column)
        case "text" if _has_exact_text(column.type):
            return np.asarray(column.cast(pa.string()).fill_null(each.missing), object)
        case "id" if pa.types.is_integer(column.type):
            return np.asarray(column.cast(pa.int64()))
        case "pixels" | "tokens" if pa.types.is_binary(column.type) and each.field is not None:
            together = uniform_arrays(column, each.field) if each.field.codec == "ndarray" else None
            cells = together if together is not None else [decode(cell, each.field) for cell in column.to_pylist()]
            return np.asarray(cells, np.uint8 if each.kind == "pixels" else np.int64).reshape(len(column), *each.shape)
        case "tokens" if pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
            return _lists(column, each)
    raise SourceError(f"column {each.name} is {column.type}, but it stands for {each.meaning} ({each.kind}); cast it.")


def _numbers(column: pa.Array) -> NDArray[np.float64]:
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return np.asarray(column.cast(pa.float64(), safe=False), np.float64)  # null -> NaN; beyond 2**53 rounded, as by Spark


def _lists(column: pa.Array, each: Input) -> NDArray[np.int64]:
    lengths = {len(tokens) for tokens in column}
    if len(lengths) > 1 or max(lengths, default=0) > each.shape[0]:
        raise SourceError(f"column {each.name} has rows of {min(lengths)} to {max(lengths)} tokens, but a prediction takes rows of one "
                          f"length, at most {each.shape[0]}; fill or cut them.")
    return np.asarray(column.flatten(), np.int64).reshape(len(column), max(lengths, default=0))


def _is_number(kind: pa.DataType) -> bool:
    return any(is_one(kind) for is_one in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean,
                                           pa.types.is_null))


def _has_exact_text(kind: pa.DataType) -> bool:
    """Whether Arrow writes the values as Spark does; doubles and timestamps are written in other ways."""
    return any(is_one(kind) for is_one in (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_boolean,
                                           pa.types.is_date32, pa.types.is_null))
