"""The versions of Spark that are supported, the Java, Scala and Parquet of each, the oldest Arrow, and what is refused. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkring.errors import EnvironmentProblem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = (3, 5)
"""Older ones lack job tags, by which a ring is watched and cancelled, and barrier stages of ``mapInArrow``."""
FIRST_CONNECT = (4, 0)
"""The Connect client of Spark 3.5 reports no progress of a job, by which a ring that never starts is noticed, and takes no Arrow table."""

FIRST_ARROW = (14, 0, 1)
"""In older ones a Parquet or Arrow file may run code (CVE-2023-47248). Only pip knows the package's bound, and not everybody asks it."""


def require_supported_arrow(version: str, *, where: str) -> None:
    """Check that files can be read with this pyarrow.

    Args:
        version: pyarrow's.
        where: The process or host that has it, for the error.
    Raises:
        EnvironmentProblem: they cannot.
    """
    if tuple(int(part) for part in version.split(".")[:3] if part.isdecimal()) < FIRST_ARROW:
        first = ".".join(map(str, FIRST_ARROW))
        raise EnvironmentProblem(f"found pyarrow {version} {where}, in which a Parquet or Arrow file may run code (CVE-2023-47248); "
                                 f"install pyarrow {first} or later.")


def require_supported(version: str, *, connect: bool) -> None:
    """Check that a ring can run on this Spark.

    Args:
        version: Spark's, e.g. ``3.5.9``; of a Connect session the server's.
        connect: Whether the session is Spark Connect's.
    Raises:
        EnvironmentProblem: it cannot.
    """
    if minor(version) < FIRST:
        raise EnvironmentProblem(f"found Spark {version}, which lacks barrier stages over Arrow; use Spark {_text(FIRST)} or later.")
    if connect and minor(version) < FIRST_CONNECT:
        raise EnvironmentProblem(f"found Spark Connect {version}, whose client reports no progress of a job and takes no Arrow table; use "
                                 f"a classic session (spark.master), or Spark {_text(FIRST_CONNECT)} or later for Connect.")


def is_connect(spark: SparkSession) -> bool:
    """Whether a session is Spark Connect's."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def java_versions(version: str) -> tuple[int, ...]:
    """Releases of Java that Spark runs on. Spark 4 needs 17: its classes are compiled for it."""
    return (17, 21) if minor(version) >= (4, 0) else (8, 11, 17)


def scala_version(version: str) -> str:
    """The Scala of Spark's packages: Spark 3.5 is published for 2.12 and 2.13, and platforms and PyPI have the first."""
    return "2.13" if minor(version) >= (4, 0) else "2.12"


def verifies_pages(version: str) -> bool:
    """Whether Spark's reader can verify the checksums of Parquet pages of format 2: not with the Parquet 1.13 of Spark 3.5."""
    return minor(version) >= (4, 0)


def minor(version: str) -> tuple[int, int]:
    """``4.1.0.dev1`` -> (4, 1)."""
    first, second = version.split(".")[:2]
    return int(first), int(second)


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
