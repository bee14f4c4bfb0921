"""Compute of Databricks without barrier stages: it offers sessions of Spark Connect alone, and no ring runs there.

Connect itself is no obstacle: elsewhere it has barrier stages, and a ring uses them.
"""

from __future__ import annotations

import os
from importlib import metadata
from typing import TYPE_CHECKING

from sparkring.errors import EnvironmentProblem
from sparkring.spark_jobs.spark.versions.supported import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNTIME = "DATABRICKS_RUNTIME_VERSION"
"""Databricks sets this variable for notebooks and jobs."""


def require_barrier_stages(spark: SparkSession) -> None:
    """Check that a session is not of such compute. Asked first: its Spark may be too old as well, and it hides its properties.

    Raises:
        EnvironmentProblem: it is.
    """
    refusal = without_barrier_stages(connect=is_connect(spark))
    if refusal is not None:
        raise refusal


def without_barrier_stages(*, connect: bool) -> EnvironmentProblem | None:
    """The error of a session of such compute; None of any other.

    Args:
        connect: Whether the session is Spark Connect's.
    """
    if not connect:
        return None
    if RUNTIME in os.environ:
        return EnvironmentProblem(
            "this is compute of Databricks in standard (shared) access mode, or serverless, which has no SparkContext and no barrier "
            "stages, so nothing can train there; use a cluster in dedicated (single user) access mode, or a job on one.")
    if _has_client():
        return EnvironmentProblem(
            "this session is databricks-connect's, which has no SparkContext and no barrier stages, so nothing can train by it; run this "
            "on the cluster itself, one in dedicated (single user) access mode, in a notebook or as a job.")
    return None


def _has_client() -> bool:
    """Whether the Connect client here is Databricks' own: its package takes the place of PySpark."""
    try:
        metadata.distribution("databricks-connect")
    except metadata.PackageNotFoundError:
        return False
    return True
