"""The ring launcher: run a function on n Horovod ranks inside Spark; get n results, or one error that names the failure.

    results = run_ring(train, dataset, num_ranks=2, spark=spark)        # train(context, dataset) on each rank

The function calls ``hvd.init`` itself, with any process sets; the launcher prepares the environment for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from sparkring.conf.schema import RingConfig
from sparkring.errors import ConfigError
from sparkring.models.networks import REGISTRY
from sparkring.spark_jobs.launch.gpus.source import dealt_gpus
from sparkring.spark_jobs.launch.rank.end import Json
from sparkring.spark_jobs.launch.under_way import RINGS
from sparkring.spark_jobs.spark.databricks import require_barrier_stages
from sparkring.spark_jobs.spark.versions.supported import is_connect, require_supported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT = RingConfig()


def run_ring(fn: Callable[..., Json], *args: Any, num_ranks: int, spark: SparkSession, config: RingConfig = DEFAULT,
             left_out: Collection[str] = ()) -> list[Json]:
    """Run ``fn(context, *args)`` on each of ``num_ranks`` ranks.

    Args:
        fn: The work of a rank. Its first argument is a ``RankContext``; it is shipped by cloudpickle.
        args: Further arguments, the same on each rank.
        num_ranks: Horovod ranks: one process in one Spark slot each, all at once.
        spark: A classic session, or one over Spark Connect.
        config: How to start, join and watch the ranks.
        left_out: Names of hosts that get no rank while there are others (``HostsLeftOut`` if those have too few slots);
            ignored by launcher ``horovod.spark``, and while this driver runs other rings.
    Returns:
        The results of ``fn`` by rank, as JSON (a tuple becomes a list): nothing that came over a network is unpickled.
    Raises:
        NotEnoughSlots: Spark cannot run so many ranks at once; raised within ``config.start_timeout_s``.
        EnvironmentProblem: a Spark that is not supported or has no barrier stages, or executors lack a GPU, a module or an address, or
            have other versions.
        RankFailed: ``fn`` raised on a rank; the error holds the traceback.
        RankDied: a rank's process ended without a result.
        RingError: Spark ended the job for a reason of its own.
    """
    if num_ranks < 1:
        raise ConfigError(f"num_ranks={num_ranks}, but a ring needs a rank; give at least 1.")
    require_barrier_stages(spark)
    require_supported(spark.version, connect=is_connect(spark))
    fn = REGISTRY.carrying(fn)
    with dealt_gpus(spark, config, num_ranks=num_ranks) as gpus:
        if config.launcher == "horovod.spark":
            from sparkring.spark_jobs.launch.horovod.launcher import run_by_horovod
            return run_by_horovod(fn, args, num_ranks=num_ranks, spark=spark, config=config, gpus=gpus)
        from sparkring.spark_jobs.launch.barrier.launcher import run_by_barrier
        left_out = () if RINGS.several else left_out  # leaving hosts out takes all slots, and others have some
        return run_by_barrier(fn, args, num_ranks=num_ranks, spark=spark, config=config, gpus=gpus, left_out=left_out)
