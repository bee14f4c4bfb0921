"""A resource profile of a stage by ``mapInArrow``.

It takes one from Spark 4.0 on (SPARK-46812). In Spark 3.5 only RDDs do: there the frame's rows, as an RDD, are in the same stage, and a
profile of one RDD is that of its stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import signature
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import DataFrame, Row

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.resource import ResourceProfile


class Collectable(Protocol):
    """A frame, or an RDD of its rows."""

    def collect(self) -> list[Row]:
        """All rows."""
        ...


def map_in_arrow(frame: DataFrame, work: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]], schema: str, *, barrier: bool,
                 profile: ResourceProfile | None) -> Collectable:
    """``frame.mapInArrow``, in a stage with this profile; None: with the session's own."""
    if profile is None:
        return frame.mapInArrow(work, schema, barrier=barrier)
    if "profile" in signature(DataFrame.mapInArrow).parameters:
        return frame.mapInArrow(work, schema, barrier=barrier, profile=profile)
    return rows_with_profile(frame.mapInArrow(work, schema, barrier=barrier), profile)


def rows_with_profile(frame: DataFrame, profile: ResourceProfile) -> Collectable:
    """The way of Spark 3.5, which classic sessions of all versions have."""
    return frame.rdd.withResources(profile)
