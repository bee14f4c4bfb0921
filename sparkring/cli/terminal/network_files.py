"""Networks from Python files named on the command line: run here, and shipped to ranks and tasks by value.

Executors have no copy of such a file, so its functions cannot travel as references, as those of an installed package do.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import cloudpickle

from sparkring.errors import ConfigError
from sparkring.models.networks import REGISTRY


def register_file(path: Path) -> None:
    """Run a file that registers networks with ``@sparkring.network``.

    Raises:
        ConfigError: there is no such file, it is not Python, it raises, or it registers nothing.
    """
    before = REGISTRY.builds()
    name = f"sparkring_networks_{path.stem}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"--networks {path}: there is no Python file of that name; give one that ends in .py.")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"--networks {path}: {type(error).__name__}: {error}; fix the file.") from error
    if REGISTRY.builds() == before:
        raise ConfigError(f"--networks {path} registers no network; put @sparkring.network before the function that makes one.")
    _ship_by_value(name)


def _ship_by_value(module: str) -> None:
    """Register the module with cloudpickle, which ships work to ranks, and with Spark's copy of it, which ships work to tasks."""
    from pyspark import cloudpickle as spark_s

    for each in (cloudpickle, spark_s):
        each.register_pickle_by_value(sys.modules[module])
