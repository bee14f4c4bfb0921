"""Champion and candidate on the same held-out rows: each row's loss by either, and their difference. Computed by Spark.

    binary       cross entropy of the label, in nats
    multiclass   the same
    regression   squared error, in the label's unit squared
    next_token   nats of a row, summed over its predicted tokens; so of masked_tokens, whose masks are the same for both models
"""

from __future__ import annotations

import numpy as np
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkring.conf.schema import TEXT_TASKS
from sparkring.errors import DatasetError, NotFinite
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.etl.columns.expressions import named
from sparkring.spark_jobs.etl.sources.committed_files import naming_damaged_pages
from sparkring.spark_jobs.retraining.paired import Paired
from sparkring.spark_jobs.scoring.columns import NATS, PREDICTION, PROBABILITIES, PROBABILITY
from sparkring.spark_jobs.scoring.predict import Model
from sparkring.spark_jobs.scoring.predict_split import predict_split
from sparkring.spark_jobs.scoring.split_rows import SplitRows

SPLIT = "test"
_EPS = float(np.finfo(np.float64).eps)
"""Probabilities are kept this far from 0 and 1, as in ``evaluation/metrics.py``."""


def compare(session: SparkSession, manifest: Manifest, *, champion: str, candidate: str, batch_rows: int) -> Paired:
    """Compare two models row by row on the test rows of a dataset version.

    Args:
        session: The session to use.
        manifest: The dataset version; both models can read its rows.
        champion: The folder of the champion's run.
        candidate: The same of the candidate's.
        batch_rows: The most rows of a forward pass.
    Raises:
        ConfigError: a run has no trained model.
        DatasetError: the test rows are not all there, or a file is damaged.
        NotFinite: a model's answer for a row is not finite.
    """
    models = {"champion": Model.of(champion), "candidate": Model.of(candidate)}
    url = models["candidate"].card.dataset_url
    rows = SplitRows.of(manifest, url, SPLIT)
    keep = [manifest.row_id] if manifest.task in TEXT_TASKS else [manifest.row_id, manifest.label]
    losses = (_losses(predict_split(session, rows, model, keep=keep, batch_rows=batch_rows), manifest, name)
              for name, model in models.items())
    # No join: Spark would broadcast one side, whatever its size (predict_split).
    first, second = losses
    both = first.unionByName(second, allowMissingColumns=True).groupBy("row").agg(*(sf.max(name).alias(name) for name in models))
    difference = sf.col("champion") - sf.col("candidate")
    with naming_damaged_pages(open_store(url), rows.files):
        found = both.agg(
            sf.count(sf.lit(1)).alias("rows"), sf.count_if(sf.abs(difference) < float("inf")).alias("compared"),
            sf.avg("champion").alias("champion"), sf.avg("candidate").alias("candidate"),
            sf.stddev_samp(difference).alias("deviation")).collect()[0]
    expected = manifest.splits[SPLIT].rows
    if found["rows"] != expected:
        raise DatasetError(f"the {SPLIT} split of version {manifest.version} of {url} has {expected} rows, and {found['rows']} could be "
                           "compared; check the dataset with `sparkring datasets verify`.")
    if found["compared"] != expected:
        raise NotFinite(f"champion or candidate has no finite answer for {expected - found['compared']} of the {expected} rows of the "
                        f"{SPLIT} split, so they cannot be compared; see whether features of these rows are far beyond those of training.")
    return Paired(rows=found["rows"], champion=found["champion"], candidate=found["candidate"], deviation=found["deviation"] or 0.0)


def _losses(predicted: DataFrame, manifest: Manifest, name: str) -> DataFrame:
    """Row id and loss."""
    return predicted.select(named(manifest.row_id).alias("row"), _loss(manifest).alias(name))


def _loss(manifest: Manifest) -> Column:
    label = named(manifest.label)
    match manifest.task:
        case "binary":
            right = sf.when(label == 1, sf.col(PROBABILITY)).otherwise(1 - sf.col(PROBABILITY))
            return _nats(right)
        case "multiclass":
            return _nats(sf.get(sf.col(PROBABILITIES), label.cast("int")))
        case "regression":
            return sf.pow(sf.col(PREDICTION) - label, sf.lit(2))
        case "next_token" | "masked_tokens":
            return sf.col(NATS)


def _nats(probability: Column) -> Column:
    return sf.when(probability.isNotNull(), -sf.ln(sf.greatest(probability, sf.lit(_EPS))))
