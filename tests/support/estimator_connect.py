"""Fit, transform, save and load over Spark Connect. A program of its own, since a process has either a Connect session or a classic one.

    python -m tests.support.estimator_connect FOLDER

Prints one line of JSON about what it found.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from pyspark.ml.linalg import Vectors
from pyspark.sql import functions as sf

import sparkring
from sparkring.conf.schema import SparkConfig
from sparkring.spark_jobs.spark.session import spark_session


def main(folder: Path) -> None:
    """Do everything with one session."""
    spark = spark_session(SparkConfig(remote="local[2]"), app_name="estimator over connect")
    draw = random.Random(5)
    rows = [(x := draw.uniform(-1, 1), Vectors.dense(draw.random(), x), int(x + draw.gauss(0, 0.1) > 0)) for _ in range(400)]
    frame = spark.createDataFrame(rows, ["x", "v", "label"])
    model = sparkring.TorchClassifier(numRanks=2, epochs=3, hiddenSizes=[8], learningRate=0.03).fit(frame)
    scored = model.transform(frame)
    model.save(str(folder / "model"))
    loaded = sparkring.TorchModel.load(str(folder / "model")).transform(frame)
    right = scored.agg(sf.avg((sf.col("prediction") == sf.col("label")).cast("int"))).collect()[0][0]
    twice = model.transform(frame.select("*", sf.lit(1).alias("id"), sf.lit(2).alias("id"))).collect()[0]
    answers = [[list(row.probability) for row in each.select("x", "probability").sort("x").collect()] for each in (scored, loaded)]
    found = {"session": type(spark).__module__, "columns": scored.columns, "right": right, "fitted": answers[0], "loaded": answers[1],
             "twice": [twice[3], twice[4]]}
    sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
