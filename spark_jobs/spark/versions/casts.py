"""A cast that gives null where a value does not fit, and a type from its name.

``Column.try_cast`` and ``DataType.fromDDL`` are of Spark 4.0. SQL's ``try_cast``, which Spark 3.5 has, makes
the same expression: with ANSI's rules whatever ``spark.sql.ansi.enabled`` says.
"""

from __future__ import annotations

import re

from pyspark.sql import Column, types
from pyspark.sql import functions as sf

_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def try_cast(name: str, kind: types.DataType) -> Column:
    """The column called exactly ``name``, as another type; null where a value does not fit.

    Args:
        name: May hold dots and backticks.
        kind: An atomic type.
    """
    if hasattr(Column, "try_cast"):  # asked of the class: a column answers to any name
        return sf.col(_quoted(name)).try_cast(kind)
    return try_cast_by_sql(name, kind)


def try_cast_by_sql(name: str, kind: types.DataType) -> Column:
    """The way of Spark 3.5, which all versions have."""
    return sf.expr(f"try_cast({_quoted(name)} AS {kind.simpleString()})")


def type_of(ddl: str) -> types.DataType:
    """The type that SQL calls ``ddl``, e.g. ``decimal(10,2)``.

    Raises:
        PySparkException: there is none.
    """
    if hasattr(types.DataType, "fromDDL"):
        return types.DataType.fromDDL(ddl)
    return types._parse_datatype_string(ddl)  # noqa: SLF001 (what fromDDL calls)


def ddl_of(kind: types.DataType) -> str:
    """What SQL calls a type, the inverse of ``type_of``: ``simpleString`` with backticks around names of fields that SQL reads only so."""
    match kind:
        case types.StructType():
            fields = (f"{field.name if _PLAIN.fullmatch(field.name) else _quoted(field.name)}:{ddl_of(field.dataType)}" for field in kind)
            return f"struct<{','.join(fields)}>"
        case types.ArrayType():
            return f"array<{ddl_of(kind.elementType)}>"
        case types.MapType():
            return f"map<{ddl_of(kind.keyType)},{ddl_of(kind.valueType)}>"
    return kind.simpleString()


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
