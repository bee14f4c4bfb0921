"""The program in a model card that runs the file on one row. Pure: text only; a test runs it."""

from __future__ import annotations

from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.spark_jobs.exporting.signature import Input, Signature


def snippet(file: str, signature: Signature, fitted: Preprocessing) -> str:
    """A program that predicts a row of usual values.

    Args:
        file: Name of the file, beside which it is run.
        signature: The file's signature.
        fitted: Gives a usual value of each input.
    """
    rows = [f"    {each.name!r}: {_value(each, fitted)}," for each in signature.inputs]
    return "\n".join([
        "import numpy, onnxruntime", "", f"session = onnxruntime.InferenceSession({file!r})", "rows = {", *rows, "}",
        "answers = session.run(None, rows)", "print({output.name: answer for output, answer in zip(session.get_outputs(), answers)})"])


def _value(each: Input, fitted: Preprocessing) -> str:
    match each.kind:
        case "number":
            means = {feature.column: feature.mean for feature in fitted.numeric}
            edges = {bucket.of: bucket.edges[0] for bucket in fitted.buckets if bucket.edges}
            return f"numpy.array([{float(f'{means.get(each.name, edges.get(each.name, 0.0)):.4g}')!r}])"
        case "text":
            vocabulary = next(feature.vocabulary for feature in fitted.categorical if feature.column == each.name)
            return f"numpy.array([{(vocabulary or (each.missing or '',))[0]!r}], dtype=object)"
        case "id":
            return "numpy.array([1])"
        case "pixels":
            return f"numpy.zeros((1, {', '.join(map(str, each.shape))}), dtype=numpy.uint8)"
        case "tokens":
            return f"numpy.zeros((1, {each.shape[0]}), dtype=numpy.int64)"
