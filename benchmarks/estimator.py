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
from typing import Any

import numpy as np
import pandas as pd
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
    model: sparkring.TorchModel = sparkring.TorchClassifier(
        labelCol="late", numRanks=RANKS, epochs=EPOCHS, batchRows=BATCH, learningRate=LEARNING_RATE, hiddenSizes=list(HIDDEN),
        config={"train": {"early_stopping": None, "optimizer": {"schedule": "constant"}}}).fit(frame)
    return model.transform


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
        indexer: Any = fitted.stages[0]
        sizes = tuple(len(labels) + 1 for labels in indexer.labelsArray)
        state: Any = TorchDistributor(num_processes=RANKS, local_mode=True, use_gpu=False).run(_train_by_the_book, folder, sizes)
    network = build_model(TabularModelConfig(hidden=HIDDEN), Shapes(num_numeric=len(NUMBERS), cardinalities=sizes))
    network.load_state_dict(state)
    return lambda rows: _scored(fitted, network.eval(), rows)


def encoded(fitted: PipelineModel, rows: DataFrame) -> DataFrame:
    """The network's inputs and the label."""
    return fitted.transform(rows).select(vector_to_array(sf.col("scaled"), "float32").alias("numeric"),
                                         sf.array(*(sf.col(f"{name}_id").cast("bigint") for name in TEXTS)).alias("categorical"), "late")


def _train_by_the_book(folder: str, sizes: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """On each of the peer's processes: read, train, and return the weights of the epoch with the least validation loss."""
    import torch.distributed as dist
    from torch.nn.functional import binary_cross_entropy_with_logits as loss_of
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sets = {name: TensorDataset(*_tensors(f"{folder}/{name}")) for name in ("train", "validation")}
    torch.manual_seed(1)
    network = build_model(TabularModelConfig(hidden=HIDDEN), Shapes(num_numeric=len(NUMBERS), cardinalities=sizes))
    replica = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(replica.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    sampler: DistributedSampler[Any] = DistributedSampler(sets["train"], seed=1)
    train = DataLoader(sets["train"], batch_size=BATCH // RANKS, sampler=sampler)
    validation = DataLoader(sets["validation"], batch_size=BATCH, sampler=DistributedSampler(sets["validation"], shuffle=False))
    best, kept = float("inf"), {}
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        replica.train()
        for numeric, categorical, label in train:
            optimizer.zero_grad()
            loss_of(replica(numeric=numeric, categorical=categorical), label).backward()
            optimizer.step()
        replica.eval()
        with torch.no_grad():
            losses = [loss_of(network(numeric=numeric, categorical=categorical), label, reduction="sum")
                      for numeric, categorical, label in validation]
        total = torch.stack(losses).sum()
        dist.all_reduce(total)
        if float(total) < best:
            best, kept = float(total), {name: value.clone() for name, value in network.state_dict().items()}
    dist.destroy_process_group()
    return kept


def _tensors(folder: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    table = pq.read_table(folder)
    numeric, categorical = (np.stack(table[name].to_numpy()) for name in ("numeric", "categorical"))
    return torch.from_numpy(numeric), torch.from_numpy(categorical), torch.from_numpy(table["late"].to_numpy().astype(np.float32))


def _scored(fitted: PipelineModel, network: torch.nn.Module, rows: DataFrame) -> DataFrame:
    """The peer's logits beside the label."""
    table = encoded(fitted, rows).toPandas()
    with torch.no_grad():
        logits = network(numeric=torch.from_numpy(np.stack(table["numeric"].to_list())),
                         categorical=torch.from_numpy(np.stack(table["categorical"].to_list())))
    answers = pd.DataFrame({"late": table["late"], "rawPrediction": logits.numpy().astype(float)})
    return rows.sparkSession.createDataFrame(answers)


def main(rows: int = ROWS, rounds: int = ROUNDS) -> None:
    """Run both sides in turn and print the table and the figures."""
    sides = {"sparkring": ours, "TorchDistributor": theirs}
    with tempfile.TemporaryDirectory(prefix="sparkring-estimator-") as folder:
        spark = spark_session(SparkConfig(master=f"local[{RANKS}]"), app_name="estimator benchmark")
        for name, count, seed in (("fit", rows, 1), ("held_out", HELD_OUT, 2)):
            rows_of(spark, count, seed=seed).write.parquet(f"file:{folder}/{name}")
        frame, held_out = (spark.read.parquet(f"file:{folder}/{name}") for name in ("fit", "held_out"))
        auc = BinaryClassificationEvaluator(labelCol="late")
        seconds: list[dict[str, float]] = []
        found: dict[str, float] = {}
        for number in range(rounds + 1):
            taken = {}
            for side in list(sides) if number % 2 else list(sides)[::-1]:
                began = time.perf_counter()
                scores = sides[side](frame)
                taken[side] = time.perf_counter() - began
                found[side] = auc.evaluate(scores(held_out))
            print(f"round {number} of {rounds}: " + ", ".join(f"{side} {value:.1f} s" for side, value in taken.items()), flush=True)
            if number:
                seconds.append(taken)
        spark.stop()
    middle = {side: statistics.median(taken[side] for taken in seconds) for side in sides}
    print_result([{"side": side, "seconds to fit": f"{middle[side]:.1f}", "AUC": f"{found[side]:.4f}"} for side in sides],
                 {"rows": rows, "seconds": middle["sparkring"], "torch_distributor_seconds": middle["TorchDistributor"],
                  "ratio_to_torch_distributor": statistics.median(one["sparkring"] / one["TorchDistributor"] for one in seconds),
                  "auc": found["sparkring"], "torch_distributor_auc": found["TorchDistributor"]})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
