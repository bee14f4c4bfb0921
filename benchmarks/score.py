"""Rows a second that Spark scores with the flights network, beside ``pyspark.ml.functions.predict_batch_udf`` and ONNX Runtime.

    uv run python -m benchmarks.score

1 M flights (the shipped ones, repeated) on 2 cores, twice: as the dataset stores them, encoded, and raw, as the query yields them. Each
side adds the probability to all columns of the same Parquet files, into Spark's ``noop`` sink; ours by the call of ``sparkring score``.
The peer is written by its documentation: one array of numbers and one of ids, a function that loads the model once a worker, batches of
8,192. It encodes nothing, so its raw rows go through ``encode``, as prepare's do. ONNX Runtime computes the same network in the same
peer, on one thread as torch. Sides take turns in each round; a ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import io
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import DoubleType

from benchmarks.support.report import print_result
from sparkring.conf.loading import load_config
from sparkring.conf.schema import Config
from sparkring.models.build import build_model
from sparkring.pipelines.data.dataset.integrity import row_group_bytes
from sparkring.pipelines.data.dataset.manifest import DataFile
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.training.job.model_files import ModelCard, model_from_bytes, save_model
from sparkring.pipelines.training.job.tasks import shapes_of
from sparkring.spark_jobs.etl.encoding.table_features import encode
from sparkring.spark_jobs.etl.examples import tables
from sparkring.spark_jobs.etl.sources.tables import cache_of, locate, open_tables
from sparkring.spark_jobs.prepare import prepare
from sparkring.spark_jobs.scoring.predict import Model, predict_with
from sparkring.spark_jobs.scoring.predict_split import predict_split
from sparkring.spark_jobs.scoring.raw_rows import source_columns
from sparkring.spark_jobs.scoring.split_rows import SplitRows
from sparkring.spark_jobs.spark.session import spark_session

ROWS, FILES, ROUNDS, BATCH = 1_000_000, 8, 5, 8192
Network = Callable[[NDArray[np.float32], NDArray[np.int64]], NDArray[np.float64]]


def write_rows(spark: SparkSession, config: Config, folder: Path) -> None:
    """Write the raw rows and the encoded ones, and save a network of the shipped size with random weights."""
    prepare(config, spark=spark)
    manifest = Dataset(config.dataset).manifest()
    torch.manual_seed(0)
    network = build_model(config.model, shapes_of(manifest.task, manifest.preprocessing))
    save_model(config.run_url, network.state_dict(), ModelCard(
        name=config.name, model=config.model, preprocessing=manifest.preprocessing, dataset_url=config.dataset, dataset_version=1,
        content_id=manifest.content_id, epoch=1, step=1, validation={}, code_version=""))
    opened = open_tables(spark, [locate(*source) for source in config.prepare.sources.items()], cache=cache_of(config))
    with tables(spark, {table.source.name: table.frame for table in opened}):
        flights = spark.sql(config.prepare.query).persist()
        times = -(-ROWS // flights.count())
        rows = flights.crossJoin(spark.range(times).drop("id")).limit(ROWS).repartition(FILES)
        rows.write.parquet(f"file:{folder}/raw")
    encoded = encode(spark.read.parquet(f"file:{folder}/raw"), manifest.preprocessing)
    encoded.select([field.name for field in manifest.fields]).write.parquet(f"file:{folder}/encoded")
    flights.unpersist()


def stored_rows(folder: str, config: Config) -> SplitRows:
    """The encoded rows, as a dataset version's would be given."""
    files = []
    for file in sorted(Path(folder).glob("*.parquet")):
        footer = pq.read_metadata(file)
        rows = tuple(footer.row_group(number).num_rows for number in range(footer.num_row_groups))
        files.append(DataFile(path=file.name, bytes=file.stat().st_size, sha256="", row_groups=rows,
                              row_group_bytes=row_group_bytes(footer)))
    return SplitRows(folder, tuple(files), Dataset(config.dataset).manifest().fields)


def peer(make: Callable[[], Network], features: Preprocessing) -> Callable[[DataFrame], DataFrame]:
    """``predict_batch_udf`` on encoded rows."""
    numeric, ids = list(features.numeric_columns), [feature.column for feature in features.with_ids]
    ask: Callable[..., Any] = predict_batch_udf(cast("Any", make), return_type=DoubleType(), batch_size=BATCH,
                                                input_tensor_shapes=[[len(numeric)], [len(ids)]])
    return lambda frame: frame.withColumn("probability", ask(sf.array(*numeric), sf.array(*ids)))


def with_torch(model: Model) -> Callable[[], Network]:
    """Loads the network in a worker, for torch."""
    card, weights = model.card.model_dump_json(), model.weights

    def make() -> Network:
        torch.set_num_threads(1)
        network = model_from_bytes(ModelCard.model_validate_json(card), weights)

        def ask(numeric: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.float64]:
            with torch.inference_mode():
                logits = network(numeric=torch.from_numpy(numeric.astype(np.float32)), categorical=torch.from_numpy(ids.astype(np.int64)))
                return torch.sigmoid(logits.double()).numpy()
        return ask
    return make


def with_onnx(model: Model) -> Callable[[], Network] | None:
    """The same for ONNX Runtime; None if it is not installed."""
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        return None
    features, file = model.card.preprocessing, io.BytesIO()
    network = model_from_bytes(model.card, model.weights)
    example = (torch.zeros(2, len(features.numeric_columns)), torch.zeros(2, len(features.with_ids), dtype=torch.int64))
    rows = torch.export.Dim("rows")
    exported: Any = torch.onnx.export(network, (), kwargs=dict(zip(("numeric", "categorical"), example, strict=True)), dynamo=True,
                                      dynamic_shapes={"numeric": {0: rows}, "categorical": {0: rows}}, verbose=False)
    exported.save(file)
    content = file.getvalue()

    def make() -> Network:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(content, options)

        def ask(numeric: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.float64]:
            [logits] = session.run(None, {"numeric": numeric.astype(np.float32), "categorical": ids.astype(np.int64)})
            return 1 / (1 + np.exp(-logits.astype(np.float64)))
        return ask
    return make


def sides_of(spark: SparkSession, config: Config, folder: Path) -> dict[str, Callable[[], DataFrame]]:
    """The frames to compute, by name."""
    model = Model.of(config.run_url)
    raw, encoded = (spark.read.parquet(f"file:{folder}/{name}") for name in ("raw", "encoded"))
    features = model.card.preprocessing
    others = [name for name in raw.columns if name not in source_columns(model.card)]
    by_torch, onnx = peer(with_torch(model), features), with_onnx(model)
    stored = stored_rows(f"{folder}/encoded", config)

    def encoded_beside_raw() -> DataFrame:
        kept = raw.select("*", *(sf.col(name).alias(f"__source_{name}") for name in raw.columns if name not in others))
        return encode(kept, features)

    sides: dict[str, Callable[[], DataFrame]] = {
        "sparkring": lambda: predict_split(spark, stored, model, keep=encoded.columns, batch_rows=BATCH),
        "predict_batch_udf": lambda: by_torch(encoded),
        "sparkring, raw": lambda: predict_with(raw, model, batch_rows=BATCH),
        "predict_batch_udf, raw": lambda: by_torch(encoded_beside_raw())}
    if onnx is not None:
        by_onnx = peer(onnx, features)
        sides["predict_batch_udf, ONNX Runtime"] = lambda: by_onnx(encoded)
    return sides


def seconds(frame: DataFrame) -> float:
    """Seconds to compute all of a frame."""
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def main() -> None:
    """Run all sides in turn and print the table and the figures."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="sparkring-score-") as name:
        folder = Path(name)
        config = load_config("local/flights", [f"workspace={folder}/flights", "run=scored", "spark.master=local[2]"])
        spark = spark_session(config.spark, app_name="score benchmark")
        write_rows(spark, config, folder)
        sides = sides_of(spark, config, folder)
        found: list[tuple[float, ...]] = []
        for make in sides.values():  # a round that does not count: the JVM compiles what it runs often, and workers import torch
            some = make().where("row_id % 997 = 0").agg(sf.count("*"), sf.avg("probability"), sf.stddev("probability")).collect()[0]
            found.append(tuple(some))
        np.testing.assert_allclose(found, [found[0]] * len(found), rtol=1e-5)
        rounds: list[dict[str, float]] = []
        for number in range(ROUNDS):
            rounds.append({side: seconds(make()) for side, make in sides.items()})
            said = ", ".join(f"{side} {value:.1f} s" for side, value in rounds[-1].items())
            print(f"round {number + 1} of {ROUNDS}: {said}", flush=True)
        spark.stop()

    def ratio(side: str, to: str) -> float:
        return statistics.median(one[to] / one[side] for one in rounds)

    rates = {side: ROWS / statistics.median(one[side] for one in rounds) for side in sides}
    figures = {"rows": ROWS, "rows_per_s": rates["sparkring"], "raw_rows_per_s": rates["sparkring, raw"],
               "ratio_to_predict_batch_udf": ratio("sparkring", "predict_batch_udf"),
               "raw_ratio_to_predict_batch_udf": ratio("sparkring, raw", "predict_batch_udf, raw")}
    if "predict_batch_udf, ONNX Runtime" in sides:
        figures["ratio_to_onnx_runtime"] = ratio("sparkring", "predict_batch_udf, ONNX Runtime")
    print_result([{"side": side, "rows/s": f"{value:,.0f}"} for side, value in rates.items()], figures)


if __name__ == "__main__":
    main()
