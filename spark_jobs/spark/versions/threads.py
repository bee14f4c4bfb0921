"""A thread whose jobs belong to the session of the thread that starts it.

From Spark 4.0 on PySpark's ``InheritableThread`` is given the session, whose tags it takes over. That of Spark 3.5 passes the
argument on to Python's thread, which refuses it; it takes over the properties of the one SparkContext, and needs no session for that.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from pyspark import InheritableThread
from pyspark.sql import SparkSession


def inheriting_thread(spark: SparkSession, target: Callable[..., None], *args: Any) -> InheritableThread:
    """A daemon thread that will call ``target(*args)``; not started."""
    session = {"session": spark} if "session" in signature(InheritableThread.__init__).parameters else {}
    return InheritableThread(target=target, args=args, daemon=True, **session)
