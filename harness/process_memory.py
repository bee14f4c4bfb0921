"""The memory that this process has held."""

from __future__ import annotations

from pathlib import Path


def peak_rss_mb() -> float:
    """The most memory that this process ever held, in MiB.

    Not ``ru_maxrss``: that one outlives ``exec`` and so counts what the process that started this one held.
    """
    line = next(line for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024
