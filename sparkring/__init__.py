"""Train PyTorch models with Horovod where Spark keeps the data. Public names are those in ``__all__``; all else may move.

Importing this package loads neither torch nor pyspark: each public function imports its module on first use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkring.version import __version__

_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "pyproject.toml").is_file():
    __path__.append(str(_checkout))  # in a checkout pipelines/ lies beside us, in the wheel inside us (docs/adr/0001)

if TYPE_CHECKING:
    from sparkring.conf.loading import load_config
    from sparkring.models.networks import network
    from sparkring.spark_jobs.evaluate import evaluate
    from sparkring.spark_jobs.generate import generate
    from sparkring.spark_jobs.prepare import prepare
    from sparkring.spark_jobs.report import report
    from sparkring.spark_jobs.ring import run_ring
    from sparkring.spark_jobs.score import score
    from sparkring.spark_jobs.train import train

__all__ = ["__version__", "evaluate", "generate", "load_config", "network", "prepare", "report", "run_ring", "score", "train"]

_HOME = {
    "load_config": "sparkring.conf.loading",
    "network": "sparkring.models.networks",
    "prepare": "sparkring.spark_jobs.prepare",
    "train": "sparkring.spark_jobs.train",
    "evaluate": "sparkring.spark_jobs.evaluate",
    "score": "sparkring.spark_jobs.score",
    "generate": "sparkring.spark_jobs.generate",
    "report": "sparkring.spark_jobs.report",
    "run_ring": "sparkring.spark_jobs.ring",
}
_LONG = ("prepare", "train", "evaluate", "score", "generate", "report")
"""Functions that take a ``progress``."""


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use."""
    if name in _HOME:
        found = getattr(import_module(_HOME[name]), name)
        return _with_progress(found) if name in _LONG and hasattr(sys, "ps1") else found  # ps1: a notebook or another prompt
    raise AttributeError(f"module 'sparkring' has no attribute {name!r}; public names: {', '.join(__all__)}")


def _with_progress(job: Callable[..., Any]) -> Callable[..., Any]:
    """``job``, which shows its progress unless the caller names another place to report to."""
    @wraps(job)
    def shown(*args: Any, **kwargs: Any) -> Any:
        from sparkring.cli.console import console_progress

        return job(*args, **{"progress": console_progress(), **kwargs})
    return shown
