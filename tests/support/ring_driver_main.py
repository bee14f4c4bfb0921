"""The program behind ``ring_driver.Driver``: makes a session, then does what it is told, one JSON object a line.

    {"do": "ring", "fn": NAME, "args": [...], "num_ranks": n, "config": {...}}     in the main thread; answers with an Outcome
    {"do": "occupy", "until": PATH}      keep one slot busy until the file is there
    {"do": "stage", "num_tasks": n, "profiled": BOOL, "into": PATH}      run n tasks at once, beside a ring; leaves their GPUs, or an error
    {"do": "environment", "set": {...}}  change variables of this process
    {"do": "cancel"}                     cancel all jobs
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import BarrierTaskContext, InheritableThread
from pyspark.sql import SparkSession

from sparkring.conf.schema import RingConfig
from sparkring.spark_jobs.ring import run_ring
from sparkring.spark_jobs.spark.task_resources import TaskResources, profile_of
from sparkring.spark_jobs.spark.versions.profiles import rows_with_profile
from tests.support import ring_functions

QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.host": "127.0.0.1",
         "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "512m"}


def main() -> None:
    """Run until standard input ends."""
    # Commands and answers have pipes of their own: upstream's launcher forks, and the child hangs if a thread is reading sys.stdin.
    commands, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    spark = session(json.loads(sys.argv[1]))
    launches: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(commands, spark, launches), daemon=True).start()
    answer: dict[str, Any] | None = {"ready": True}
    while answer is not None:
        answers.write(f"{json.dumps(answer)}\n")
        answers.flush()
        command = launches.get()
        answer = command and launch(spark, command)
    spark.stop()


def session(options: dict[str, str]) -> SparkSession:
    """A session by master or remote address, and properties."""
    builder = SparkSession.builder
    builder = builder.remote(options.pop("remote")) if "remote" in options else builder.master(options.pop("master"))
    for name, value in {**QUIET, **options}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def listen(commands: Iterable[str], spark: SparkSession, launches: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    """Do at once what must happen during a launch, and hand launches to the main thread."""
    for line in commands:
        command = json.loads(line)
        if command["do"] == "ring":
            launches.put(command)
        elif command["do"] == "occupy":
            InheritableThread(target=occupy, args=(spark, command["until"]), session=spark, daemon=True).start()
        elif command["do"] == "stage":
            InheritableThread(target=stage, args=(spark, command), session=spark, daemon=True).start()
        elif command["do"] == "environment":
            os.environ.update(command["set"])
        elif command["do"] == "cancel":
            spark.sparkContext.cancelAllJobs()
    launches.put(None)


def launch(spark: SparkSession, command: dict[str, Any]) -> dict[str, Any]:
    """One ``run_ring``; what comes of it."""
    began = time.monotonic()
    try:
        results = run_ring(getattr(ring_functions, command["fn"]), *command["args"], num_ranks=command["num_ranks"], spark=spark,
                           config=RingConfig(**command["config"]))
    except BaseException as error:  # noqa: BLE001 (whatever it is, the test wants to see it)
        kinds = " ".join(kind.__name__ for kind in type(error).__mro__)
        attributes = {name: value for name, value in vars(error).items() if isinstance(value, int | str)}
        return {"error": kinds, "message": str(error), "attributes": attributes, "seconds": time.monotonic() - began}
    return {"results": results, "seconds": time.monotonic() - began}


def occupy(spark: SparkSession, until: str) -> None:
    """A job with one task that waits for a file."""
    def wait(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        Path(f"{until}.busy").touch()
        while not Path(until).exists():
            time.sleep(0.05)
        yield from batches

    spark.range(0, 1, 1, 1).mapInArrow(wait, "id long").collect()


def stage(spark: SparkSession, command: dict[str, Any]) -> None:
    """A barrier stage, whose tasks run all at once or not at all; with a profile by the way of Spark 3.5, each on a GPU."""
    def meet(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for _ in batches:
            pass
        context = BarrierTaskContext.get()
        context.barrier()
        gpus = context.resources().get("gpu")
        yield pa.RecordBatch.from_pydict({"gpu": [",".join(gpus.addresses) if gpus else ""]})

    spark.range(1).collect()  # waits for the first executor; a barrier stage is refused where there is none yet
    tasks: Any = spark.range(0, command["num_tasks"], 1, command["num_tasks"]).mapInArrow(meet, "gpu string", barrier=True)
    try:
        if command["profiled"]:
            tasks = rows_with_profile(tasks, profile_of(spark, TaskResources(cpus=1, gpus=1)))
        told = {"gpus": [row["gpu"] for row in tasks.collect()], "error": ""}
    except Exception as error:  # noqa: BLE001 (whatever it is, the test wants to see it)
        told = {"gpus": [], "error": str(error)}
    into = Path(command["into"])
    into.with_suffix(".part").write_text(json.dumps(told), encoding="utf-8")
    into.with_suffix(".part").rename(into)


if __name__ == "__main__":
    main()
