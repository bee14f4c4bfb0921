"""Start to results of a function that makes one allreduce on 2 ranks, in a warm Spark session, beside what else one could use.

    uv run python -m benchmarks.launch

Three launchers in turn, round by round: our ring, pyspark's TorchDistributor (torch.distributed, Gloo) and
``horovod.spark.run`` (Gloo). Each starts processes that import torch, ours too: the others' launches between use up Spark's warm
Python workers. So our ring is launched once more right after itself, where its ranks are forked off what the first launch left
(``ring_again_s``). A launcher's figure is the median over the rounds.
One round before them is not counted: it warms the session, the page cache and a bytecode cache that all of them read, since
importing torch from source takes three times as long and would hide what a launcher adds. Whatever else the machine does
meanwhile spoils the figures, so the table shows all rounds.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

from pyspark.sql import SparkSession

from benchmarks.support.report import print_result
from sparkring.pipelines.parallel.context import RankContext
from sparkring.spark_jobs.ring import run_ring

ROUNDS = 5
NUM_RANKS = 2
EXPECTED_SUM = 1.0
"""Of the ranks' own numbers, 0 + 1: what each rank must see."""


def horovod_sum() -> float:
    """One allreduce by Horovod."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    return float(hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum).item())


def ring_sum(context: RankContext) -> float:
    """The same as our ring calls it."""
    assert context.size == NUM_RANKS
    return horovod_sum()


def torch_sum() -> float:
    """One allreduce by torch.distributed."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    total = torch.tensor([float(distributed.get_rank())])
    distributed.all_reduce(total)
    distributed.destroy_process_group()
    return float(total.item())


def by_ring() -> float:
    """Launch by our ring."""
    results = run_ring(ring_sum, num_ranks=NUM_RANKS, spark=SparkSession.active())
    return float(results[0])


def by_torch_distributor() -> float:
    """Launch by pyspark's own distributor, on Spark's tasks."""
    from pyspark.ml.torch.distributor import TorchDistributor

    total = TorchDistributor(num_processes=NUM_RANKS, local_mode=False, use_gpu=False).run(torch_sum)
    assert isinstance(total, float)
    return total


def by_horovod_spark() -> float:
    """Launch by Horovod's own way into Spark."""
    import horovod.spark

    return float(horovod.spark.run(horovod_sum, num_proc=NUM_RANKS, use_gloo=True, verbose=0)[0])


LAUNCHERS = {"ring": by_ring, "ring_again": by_ring, "torch_distributor": by_torch_distributor, "horovod_spark": by_horovod_spark}


def timed(launch: Callable[[], float]) -> float:
    """Seconds of one launch, whose result must be right."""
    began = time.perf_counter()
    total = launch()
    seconds = time.perf_counter() - began
    assert total == EXPECTED_SUM, f"allreduce gave {total}, expected {EXPECTED_SUM}"
    return seconds


def measure() -> list[dict[str, float]]:
    """Seconds by launcher, one mapping a round."""
    spark = (SparkSession.builder.master(f"local[{NUM_RANKS}]").appName("benchmarks.launch")
             .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
             .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
    spark.sparkContext.setLogLevel("ERROR")
    try:
        return [{name: timed(launch) for name, launch in LAUNCHERS.items()} for _ in range(1 + ROUNDS)][1:]
    finally:
        spark.stop()


def main() -> None:
    """Measure and print."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="sparkring-bytecode-") as bytecode:
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        rounds = measure()
    seconds = {name: statistics.median(each[name] for each in rounds) for name in LAUNCHERS}
    table = [{"launcher": name, "median s": f"{seconds[name]:.2f}", "rounds": " ".join(f"{each[name]:.2f}" for each in rounds)}
             for name in LAUNCHERS]
    print_result(
        table,
        {f"{name}_s": value for name, value in seconds.items()}
        | {f"ratio_to_{name}": seconds["ring"] / seconds[name] for name in ("torch_distributor", "horovod_spark")})


if __name__ == "__main__":
    main()
