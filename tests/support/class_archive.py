"""Java's classes of a Spark session in one file, which the JVMs of tests map: half of a short session's processor time is loading them.

    python -m tests.support.class_archive        makes build/spark-classes.jsa by a session that does what tests do, unless it is there

``make test`` does so first; without the file, tests only take longer. A JVM with other jars than those of the file ignores it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = ROOT / "build" / "spark-classes.jsa"
DEADLINE_S = 600.0
SESSION = """
import sys
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import functions as F
from sparkring.conf.schema import SparkConfig
from sparkring.spark_jobs.spark.session import spark_session
from tests.support.spark_sessions import end_jvm

folder = sys.argv[1]
spark = spark_session(SparkConfig(master="local[2]"), app_name="class archive")
rows = spark.range(1000).withColumn("key", F.col("id") % 7).withColumn("x", F.rand(1)).withColumn("day", F.current_date())
rows.write.csv(f"{folder}/csv", header=True)
rows.write.parquet(f"{folder}/parquet")
read = spark.read.csv(f"{folder}/csv", header=True, schema="id long, key long, x double, day date")
joined = read.join(spark.read.parquet(f"{folder}/parquet").select("id", F.col("x").alias("y")), "id")
joined.createOrReplaceTempView("joined")
spark.sql("select key, count(*), avg(x), approx_percentile(y, 0.5), row_number() over (order by key) from joined group by key").collect()
joined.repartition(3, "key").sortWithinPartitions("id").mapInArrow(lambda batches: batches, joined.schema).toPandas()
joined.rdd.barrier().mapPartitions(lambda part: [sum(1 for _ in part)]).collect()
LogisticRegression(maxIter=2, labelCol="label").fit(VectorAssembler(inputCols=["x", "y"], outputCol="features").transform(
    joined.withColumn("label", (F.col("x") > 0.5).cast("double"))))
spark.stop()
end_jvm()  # it writes the archive now
"""


def options() -> str:
    """What a JVM has to be told to use the archive; nothing where there is none, or a JVM could not be told its path."""
    if not ARCHIVE.exists() or " " in str(ARCHIVE):
        return ""
    return f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:disable"  # else a JVM with other jars says so where commands say their results


def make() -> None:
    """Make the archive, unless it is there and no older than Spark."""
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    if ARCHIVE.exists() and ARCHIVE.stat().st_mtime > Path(spark.origin).stat().st_ctime:
        return
    ARCHIVE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / ARCHIVE.name
        environment = {**os.environ, "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={made} -XX:+UseSerialGC -XX:TieredStopAtLevel=1",
                       "PYTHONPATH": str(ROOT)}
        ended = subprocess.run([sys.executable, "-c", SESSION, folder], cwd=folder, env=environment, check=False, timeout=DEADLINE_S,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if made.exists():
            shutil.move(made, ARCHIVE)  # between file systems, too
        else:
            print(f"Java's classes were not archived, tests only take longer: {ended.stderr[-500:]}")


if __name__ == "__main__":
    make()
