"""Train PyTorch models with Horovod where Spark keeps the data. Public names are those in ``__all__``; all else may move.

Importing this package loads neither torch nor pyspark: each public function imports its module on first use.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 (from a checkout or a zip it is started by any Python; pip asks pyproject.toml)
    raise ImportError(f"sparkring needs Python 3.11 to 3.14, this is {sys.version.split()[0]} ({sys.executable}): older ones lack what the "
                      "code uses, and Spark 4.3 does not run on them; make an environment with Python 3.11 or later.")

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkring.extras import extras_named
from sparkring.version import __version__

_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "pyproject.toml").is_file():
    __path__.append(str(_checkout))  # in a checkout pipelines/ lies beside us, in the wheel inside us (docs/adr/0001)

if TYPE_CHECKING:
    from sparkring.conf.loading import load_config
    from sparkring.estimator.estimator import TorchClassifier, TorchEstimator, TorchRegressor
    from sparkring.estimator.model import TorchModel
    from sparkring.models.adapting.adapt import adapt
    from sparkring.models.networks import network
    from sparkring.notebook.show import show
    from sparkring.spark_jobs.comparing.compare import compare
    from sparkring.spark_jobs.cross_validating.cross_validate import cross_validate
    from sparkring.spark_jobs.evaluate import evaluate
    from sparkring.spark_jobs.export import export
    from sparkring.spark_jobs.generate import generate
    from sparkring.spark_jobs.inference.init import init
    from sparkring.spark_jobs.ingest import ingest
    from sparkring.spark_jobs.prepare import prepare
    from sparkring.spark_jobs.report import report
    from sparkring.spark_jobs.retrain import retrain
    from sparkring.spark_jobs.ring import run_ring
    from sparkring.spark_jobs.score import predict, score
    from sparkring.spark_jobs.searching.search import search
    from sparkring.spark_jobs.tracking.track import track
    from sparkring.spark_jobs.train import train

__all__ = ["TorchClassifier", "TorchEstimator", "TorchModel", "TorchRegressor", "__version__", "adapt", "compare", "cross_validate",
           "evaluate", "export", "generate", "ingest", "init", "load_config", "network", "predict", "prepare", "report", "retrain",
           "run_ring", "score", "search", "show", "track", "train"]

_HOME = {
    "load_config": "sparkring.conf.loading",
    "network": "sparkring.models.networks",
    "adapt": "sparkring.models.adapting.adapt",
    "init": "sparkring.spark_jobs.inference.init",
    "prepare": "sparkring.spark_jobs.prepare",
    "ingest": "sparkring.spark_jobs.ingest",
    "train": "sparkring.spark_jobs.train",
    "compare": "sparkring.spark_jobs.comparing.compare",
    "cross_validate": "sparkring.spark_jobs.cross_validating.cross_validate",
    "evaluate": "sparkring.spark_jobs.evaluate",
    "score": "sparkring.spark_jobs.score",
    "predict": "sparkring.spark_jobs.score",
    "generate": "sparkring.spark_jobs.generate",
    "report": "sparkring.spark_jobs.report",
    "search": "sparkring.spark_jobs.searching.search",
    "retrain": "sparkring.spark_jobs.retrain",
    "export": "sparkring.spark_jobs.export",
    "track": "sparkring.spark_jobs.tracking.track",
    "run_ring": "sparkring.spark_jobs.ring",
    "TorchClassifier": "sparkring.estimator.estimator",
    "TorchRegressor": "sparkring.estimator.estimator",
    "TorchEstimator": "sparkring.estimator.estimator",
    "TorchModel": "sparkring.estimator.model",
    "show": "sparkring.notebook.show",
}
_LONG = ("init", "prepare", "ingest", "train", "compare", "search", "cross_validate", "evaluate", "score", "generate", "report", "retrain",
         "export", "track")
"""Functions that take a ``progress``."""
_JOBS = (*_LONG, "predict", "run_ring", "show")
"""Functions that import Spark, torch and others when they are called."""


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use."""
    if name in _HOME:
        with extras_named():
            found = getattr(import_module(_HOME[name]), name)
        if name in _LONG and hasattr(sys, "ps1"):  # a prompt or a notebook
            from sparkring.notebook.interactive import for_caller

            found = for_caller(found)
        return extras_named()(found) if name in _JOBS else found
    raise AttributeError(f"module 'sparkring' has no attribute {name!r}; public names: {', '.join(__all__)}")


def __dir__() -> list[str]:
    """The public names, for a notebook's completion."""
    return sorted(__all__)
