"""The versions that a rank must share with the driver, which pickles its work, and with the other ranks, which must compute the same.

NumPy, pyarrow and pyspark may differ: rows and values are the same with all supported versions (`make test-platforms` compares them),
and the driver's Spark refuses executors that do not fit. `sparkring doctor` warns of such differences, and fails where a ring refuses.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata

from sparkring.version import __version__


@dataclass(frozen=True)
class Versions:
    """Those of one process."""

    sparkring: str
    python: str
    """The version that pickled functions depend on, e.g. ``3.11``."""
    torch: str | None
    """Of the installed torch, which is not imported for this; None without one."""


def versions_here() -> Versions:
    """Those of this process."""
    torch = None
    with suppress(metadata.PackageNotFoundError):
        torch = metadata.version("torch")
    return Versions(__version__, f"{sys.version_info.major}.{sys.version_info.minor}", torch)


def refuses(name: str, *, found: str | None, driver: str | None) -> bool:
    """Whether a ring refuses an executor for its version of ``name``, which is a field of ``Versions`` or a package that may differ."""
    if name == "torch":  # the driver computes nothing, so its build may be another, and it needs none
        return driver is not None and _release(found) != _release(driver)
    return name in ("sparkring", "python") and found != driver


def other_than_driver(host: str, found: Versions, driver: Versions) -> str | None:
    """The reason that an executor on ``host`` cannot work for the driver, or None."""
    if any(refuses(name, found=getattr(found, name), driver=getattr(driver, name)) for name in ("sparkring", "python")):
        return (f"the executor on {host} has sparkring {found.sparkring} on Python {found.python}, the driver has "
                f"{driver.sparkring} on {driver.python}; install the same on both, or point PYSPARK_PYTHON at such a Python.")
    if refuses("torch", found=found.torch, driver=driver.torch):
        return (f"the executor on {host} has {_torch(found.torch)}, the driver has {_torch(driver.torch)}; install the same "
                "release on all hosts.")
    return None


def other_than_rank(host: str, found: Versions, first_host: str, first: Versions) -> str | None:
    """The reason that an executor on ``host`` cannot be in a ring with the first one, or None."""
    if found.torch != first.torch:
        return (f"the executor on {host} has {_torch(found.torch)}, that on {first_host} has {_torch(first.torch)}; "
                "ranks of different builds do not compute the same: install one of them on all hosts.")
    return None


def _release(torch: str | None) -> str:
    """``2.13.0`` of ``2.13.0+cpu``."""
    return (torch or "").partition("+")[0]


def _torch(version: str | None) -> str:
    return f"torch {version}" if version else "no torch"
