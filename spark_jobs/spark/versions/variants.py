"""The type of values that may each have another type, such as JSON: ``VARIANT`` is of Spark 4.0. Without it there is no such column."""

from __future__ import annotations

from pyspark.sql import types

VARIANT: tuple[type[types.DataType], ...] = (types.VariantType,) if hasattr(types, "VariantType") else ()
"""For ``isinstance``; empty in Spark 3.5."""
