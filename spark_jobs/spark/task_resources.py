"""What each task of one stage takes of its executor, by a resource profile of that stage's own.

    executor           [core][core][core][core] [GPU]
    a stage of ETL     task  task  task  task              as the session says: a core each
    the ring's stage   [        rank         ] [GPU]       by its profile: 4 cores and a GPU

A profile that names the resources of tasks alone uses the executors that are there (SPARK-39853). Its amounts hold for no other stage,
whereas ``spark.task.resource.gpu.amount`` holds for every task of the session: one with a core and no use for a GPU waits for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkring.errors import EnvironmentProblem
from sparkring.spark_jobs.spark.versions.supported import is_connect

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession

TASK_AMOUNT, EXECUTOR_AMOUNT = "spark.task.resource.gpu.amount", "spark.executor.resource.gpu.amount"
"""The session's own amounts: of each task of any stage, and of an executor."""


@dataclass(frozen=True, kw_only=True)
class TaskResources:
    """The resources of one task."""

    cpus: int
    gpus: int


def never_assigned(master: str) -> EnvironmentProblem:
    """The error of a session on a local master whose tasks each ask for GPUs: all of them would wait forever."""
    return EnvironmentProblem(f"{TASK_AMOUNT} is set, and Spark assigns no GPUs on the master {master}; unset it, since ranks get the GPUs "
                              "of this machine without it.")


def profile_of(spark: SparkSession, resources: TaskResources) -> ResourceProfile:
    """The session's profile for tasks with these resources, made if it has none yet.

    Raises:
        SPARK_ERRORS: this Spark cannot use it, or no executor could run such a task.
    """
    from pyspark.resource import ResourceProfile

    if not is_connect(spark):
        return ResourceProfile(registered_profile(spark.sparkContext, resources))
    with _active(spark):
        profile = _new_profile(resources)
        _ = profile.id  # asks the server for it
    return profile


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make a Connect session the active one of this thread: a profile is made on that one's server."""
    kind: Any = type(spark)
    active = kind._active_session  # noqa: SLF001 (PySpark offers no other way to it)
    before = getattr(active, "session", None)
    active.session = spark
    try:
        yield
    finally:
        active.session = before


def registered_profile(sc: SparkContext, resources: TaskResources) -> Any:
    """Java's object of ``profile_of``."""
    manager = sc._jsc.sc().resourceProfileManager()  # noqa: SLF001 (PySpark offers no other way to it)
    profile = _new_profile(resources)._java_resource_profile  # noqa: SLF001 (as above)
    known = manager.getEquivalentProfile(profile)
    if known.isDefined():
        profile = known.get()
    else:
        manager.addResourceProfile(profile)
    profile.limitingResource(sc._jsc.sc().conf())  # noqa: SLF001 (as above); the manager keeps a profile that it refused, so ask again
    return profile


def _new_profile(resources: TaskResources) -> ResourceProfile:
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    return ResourceProfileBuilder().require(TaskResourceRequests().cpus(resources.cpus).resource("gpu", resources.gpus)).build
