"""``sparkring doctor``: check everything that a job of a config needs, and say how to fix each problem.

    machine    Java, Python and the other versions, PyTorch, Horovod, Petastorm, memory, disk, storage, sources
    cluster    Spark, its settings, slots; then one Spark job checks the executors' hosts and lets their tasks meet; the query
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sparkring.conf.schema import Config
from sparkring.spark_jobs.diagnosis.cell import check_cell, check_python
from sparkring.spark_jobs.diagnosis.check import Check, guarded
from sparkring.spark_jobs.diagnosis.cluster import (
    check_encryption,
    check_executor_memory,
    check_executors,
    check_gpu,
    check_network,
    check_settings,
    check_slots,
    ranks_by_host,
    survey_tasks,
)
from sparkring.spark_jobs.diagnosis.data import check_query, check_sources
from sparkring.spark_jobs.diagnosis.machine import check_disk, check_java, check_memory, check_shared_memory, probe_file
from sparkring.spark_jobs.diagnosis.needs import Needs
from sparkring.spark_jobs.diagnosis.packages import check_horovod, check_petastorm, check_torch
from sparkring.spark_jobs.diagnosis.storage import check_storage
from sparkring.spark_jobs.diagnosis.survey import TaskReport, this_machine
from sparkring.spark_jobs.spark.databricks import RUNTIME, require_barrier_stages
from sparkring.spark_jobs.spark.progress import SILENT, Bar, Progress
from sparkring.spark_jobs.spark.settings import setting
from sparkring.spark_jobs.spark.slots import has_dynamic_allocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Check", "doctor"]

CLUSTER_CHECKS = ("Spark settings", "slots", "executors", "executor memory", "network", "query")
NUM_CHECKS = 20


def doctor(config: Config | None, *, spark: SparkSession | None = None, progress: Progress = SILENT) -> list[Check]:
    """Check what a job of ``config`` needs.

    Args:
        config: The job; None checks this machine for a small local job.
        spark: The session to check; default the active one, or one made from ``config.spark``.
        progress: Shows how far it is.
    Returns:
        The checks, from this machine to the cluster. None of them raises, and none hides another.
    """
    with progress.stage("doctor", total=NUM_CHECKS) as bar:
        return _Examination(config, spark, bar).run()


class _Examination:
    """One pass over all checks, in the order in which they build on each other."""

    def __init__(self, config: Config | None, spark: SparkSession | None, bar: Bar) -> None:
        self._config, self._spark, self._bar = config, spark, bar
        self._needs, self._here = Needs.of(config), this_machine()
        self._reports: list[TaskReport] = []
        self._checks: list[Check] = []

    def run(self) -> list[Check]:
        self._look_here()
        self._look_at_spark()
        self._look_at_what_both_share()
        return self._checks

    def _look_here(self) -> None:
        needs, here = self._needs, self._here
        self._add("Java", lambda: check_java(needs, running=self._spark is not None))
        self._add("Python", lambda: check_python(sys.version_info[:2], sys.executable))
        self._add("versions", self._look_at_cell)
        self._add("PyTorch", lambda: check_torch(needs, here))
        self._add("Horovod", lambda: check_horovod(needs, here))
        self._add("Petastorm", lambda: check_petastorm(here))
        self._add("memory", lambda: check_memory(needs, here))
        self._add("disk", lambda: check_disk(needs))
        self._add("storage", lambda: check_storage(self._config))
        self._add("sources", lambda: check_sources(self._config))

    def _look_at_cell(self) -> Check:
        import pyspark

        return check_cell(self._here, spark=pyspark.__version__, databricks=os.environ.get(RUNTIME))

    def _look_at_spark(self) -> None:
        self._add("Spark", self._start)
        spark, needs = self._spark, self._needs
        if spark is None:
            for name in CLUSTER_CHECKS:
                self._add(name, partial(_unknown, name, "Spark"))
            return
        self._add("Spark settings", lambda: check_settings(spark, needs))
        self._add("slots", lambda: check_slots(spark, needs))
        startable = not any(check.status == "fail" for check in self._checks[-2:])
        self._add("executors", lambda: self._ask_executors(spark, startable=startable))
        if self._reports:
            self._add("executor memory", lambda: check_executor_memory(self._reports, needs))
            self._add("network", lambda: check_network(self._reports))
        else:
            self._add("executor memory", partial(_unknown, "executor memory", "executors"))
            self._add("network", partial(_unknown, "network", "executors"))
        self._add("query", lambda: check_query(spark, self._config))

    def _look_at_what_both_share(self) -> None:
        """Checks that work without Spark, and better with it."""
        needs, spark, reports = self._needs, self._spark, self._reports
        machine, ranks = max(ranks_by_host(reports), key=lambda item: item[1], default=(self._here, needs.train.num_ranks))
        self._add("shared memory", lambda: check_shared_memory(needs, machine, ranks=ranks, config=self._config))
        self._add("GPU", lambda: check_gpu(spark, reports, needs, self._here))
        if spark is not None:
            self._add("encryption", lambda: check_encryption(spark, reports, needs))

    def _add(self, name: str, look: Callable[[], Check]) -> None:
        self._bar.update(len(self._checks), total=NUM_CHECKS, text=name)
        self._checks.append(guarded(name, look))

    def _start(self) -> Check:
        from sparkring.spark_jobs.spark.session import spark_session

        given, self._spark = self._spark, None  # nothing more is asked of a session that cannot run a ring
        spark = spark_session(self._needs.spark, app_name="sparkring doctor", given=given)
        require_barrier_stages(spark)
        self._spark = spark
        return Check("Spark", "ok", f"Spark {spark.version} at {setting(spark, 'spark.master') or 'a Spark Connect server'}")

    def _ask_executors(self, spark: SparkSession, *, startable: bool) -> Check:
        on_demand = has_dynamic_allocation(spark)
        with probe_file(self._needs) as file:
            reports = survey_tasks(spark, self._needs, probe_file=file, meet=startable and not on_demand)
        self._reports = [] if on_demand else reports  # on demand they ran one after the other, where no ranks may ever be
        return check_executors(reports, self._here)


def _unknown(name: str, cause: str) -> Check:
    return Check(name, "warn", f"not looked at, see the check `{cause}`", f"First do what the check `{cause}` says.")
