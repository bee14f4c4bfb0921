"""What a network gets of raw rows that it scores: the way of ``predict``, up to the network."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from sparkring.models.inputs import CATEGORICAL, NUMERIC
from sparkring.spark_jobs.scoring.network import Network, ShippedWeights
from sparkring.spark_jobs.scoring.predict import Model, raw_inputs
from sparkring.spark_jobs.scoring.raw_rows import check_raw


def inputs_of(raw: DataFrame, run_url: str) -> dict[int, dict[str, Any]]:
    """The encoded features of each row by its ``row_id``, as the network of a run gets them."""
    model = Model.of(run_url)
    check_raw(raw, model.card)
    features = model.card.preprocessing
    columns = raw_inputs(model.card)
    rows = raw.select("row_id", *(column.alias(f"_{place}") for place, column in enumerate(columns))).toPandas()
    shipped = ShippedWeights(card_json=model.card.model_dump_json(), weights=model.weights, key="", raw=True, batch_rows=1)
    inputs = Network.load(shipped, "cpu").inputs([rows[f"_{place}"] for place in range(len(columns))])
    named = zip((NUMERIC, CATEGORICAL), (features.numeric_columns, [feature.column for feature in features.with_ids]), strict=True)
    found = {column: inputs[tensor][:, place].tolist() for tensor, names in named for place, column in enumerate(names)}
    return {row_id: {column: values[place] for column, values in found.items()} for place, row_id in enumerate(rows["row_id"])}
