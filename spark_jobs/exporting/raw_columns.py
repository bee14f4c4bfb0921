"""The columns that the file of a table's model takes, made by Spark of raw rows. What is made here is beside the file."""

from __future__ import annotations

from pyspark.sql import Column

from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.spark_jobs.etl.columns.derive import hash_of, value_of
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.exporting.signature import Signature


def raw_columns(signature: Signature, fitted: Preprocessing) -> list[Column]:
    """A column for each input of the file, named and typed as ``OnnxPredictor`` takes it.

    Args:
        signature: Of the file.
        fitted: The preprocessing of its model. ``spark_jobs/scoring/raw_rows.py`` checks the types of the raw columns.
    """
    moments = {feature.column: feature.moment for feature in (*fitted.numeric, *fitted.categorical)}
    hashed = {feature.column: feature for feature in fitted.hashed}
    made = []
    for each in signature.inputs:
        if each.kind == "id":
            column = hash_of(hashed[each.name])
        elif each.name in moments:
            column = value_of(each.name, moments[each.name])
        else:
            column = named(each.name)
        made.append((column if each.kind == "id" else column.cast("double" if each.kind == "number" else "string")).alias(each.name))
    return made
