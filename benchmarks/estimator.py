"""Seconds from a DataFrame of 300,000 rows to a fitted model, beside pyspark's own ``TorchDistributor``.

    uv run python -m benchmarks.estimator
    uv run python -m benchmarks.estimator 20000 1    # rows, rounds: a quick look

Two ranks on one machine, the same network, rows, epochs, batch and optimizer. Ours is ``TorchClassifier.fit``. The peer is written by
its documentation: Spark ML's ``StringIndexer`` and ``StandardScaler`` encode the rows, Spark writes them as Parquet, and two processes
started by ``TorchDistributor(local_mode=True)`` read them into a ``TensorDataset`` and train with ``DistributedDataParallel`` over Gloo,
with a ``DistributedSampler``. Both hold out a tenth for validation after each epoch and a tenth that nobody trains on, and keep the best
epoch. Sides take turns in each round, after one round that is not counted; ``ratio_to_torch_distributor`` is the median of the rounds'
ratios. Both models then score the same 50,000 further rows by Spark ML's evaluator of AUC.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.feature import StandardScaler, StringIndexer, VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sparkring
from benchmarks.support.report import print_result
from sparkring.conf.schema import SparkConfig, TabularModelConfig
from sparkring.models.build import Shapes, build_model
from sparkring.spark_jobs.spark.session import spark_session

ROWS, HELD_OUT, ROUNDS = 300_000, 50_000, 3
RANKS, EPOCHS, BATCH, LEARNING_RATE, HIDDEN = 2, 5, 1024, 1e-3, (128, 64)
NUMBERS, TEXTS = [f"n{place}" for place in range(8)], ["carrier", "origin", "dest"]


def rows_of(spark: SparkSession, rows: int, *, seed: int) -> DataFrame:
    """Rows with eight numbers, three texts, and a label that depends on some of them, not only linearly."""
    numbers = [(sf.randn(seed * 100 + place) * (place + 1)).alias(name) for place, name in enumerate(NUMBERS)]
    texts = [sf.concat(sf.lit(f"{name}-"), sf.floor(sf.rand(seed * 100 + 50 + place) * values).cast("string")).alias(name)
             for place, (name, values) in enumerate(zip(TEXTS, (16, 3, 100), strict=True))]
    drawn = spark.range(rows, numPartitions=4).select(*numbers, *texts)
    score = (sf.col("n0") - sf.col("n1") / 2 * sf.signum("n2") + sf.sin("n3") * 2
             + sf.pmod(sf.xxhash64("carrier"), sf.lit(7)) / 3 - sf.pmod(sf.xxhash64("dest"), sf.lit(11)) / 5)
    return drawn.withColumn("late", (sf.rand(seed * 100 + 99) < 1 / (1 + sf.exp(-score))).cast("int"))


def ours(frame: DataFrame) -> Callable[[DataFrame], DataFrame]:
    """Fit by the estimator; returns what scores a frame."""
    model = sparkring.TorchClassifier(
        labelCol="late", numRanks=RANKS, epochs=EPOCHS, batchRows=BATCH, learningRate=LEARNING_RATE, hiddenSizes=list(HIDDEN),
        config={"train": {"early_stopping": None, "optimizer": {"schedule": "constant"}}}).fit(frame)
    return lambda rows: model.transform(rows)


def theirs(frame: DataFrame) -> Callable[[DataFrame], DataFrame]:
    """Fit by the book; returns what scores a frame."""
    encoder = Pipeline(stages=[
        StringIndexer(inputCols=TEXTS, outputCols=[f"{name}_id" for name in TEXTS], handleInvalid="keep"),
        VectorAssembler(inputCols=NUMBERS, outputCol="numbers"),
        StandardScaler(inputCol="numbers", outputCol="scaled", withMean=True)])
    with tempfile.TemporaryDirectory() as folder:
        train, validation, _ = frame.randomSplit([0.8, 0.1, 0.1], seed=1)
        fitted = encoder.fit(train)
        for name, part in (("train", train), ("validation", validation)):
            encoded(fitted, part).write.parquet(f"file:{folder}/{name}")
        sizes = tuple(len(stage.labels) + 1 for stage in [fitted.stages[0]] for stage in _indexers(stage))
        state = TorchDistributor(num_processes=RANKS, local_mode=True, use_gpu=False).run(_train_by_the_book, folder, sizes)
    network = build_model(TabularModelConfig(hidden=HIDDEN), Shapes(num_numeric=len(NUMBERS), cardinalities=sizes))
    network.load_state_dict(state)
    return lambda rows: _scored(fitted, network.eval(), rows)


def encoded(fitted: PipelineModel, rows: DataFrame) -> DataFrame:
    """The network's inputs and the label."""
    return fitted.transform(rows).select(vector_to_array("scaled", "float32").alias("numeric"),
                                         sf.array(*(sf.col(f"{name}_id").cast("bigint") for name in TEXTS)).alias("categorical"), "late")
