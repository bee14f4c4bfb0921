"""Whether rows that a caller gives are a DataFrame of Spark's."""

from __future__ import annotations

from sparkring.errors import SourceError


def require_spark_frame(given: object, *, what: str) -> None:
    """Check that ``given`` is a DataFrame of Spark's, over Spark Connect or not.

    Args:
        given: What the caller gave.
        what: The same in words.
    Raises:
        SourceError: it is something else, such as a pandas DataFrame.
    """
    if hasattr(given, "sparkSession"):
        return
    package, name = type(given).__module__.partition(".")[0], type(given).__name__
    kind = name if package == "builtins" else f"{package} {name}"
    raise SourceError(f"{what} is a {kind}, and a Spark DataFrame was expected; make one with spark.createDataFrame(...).")
