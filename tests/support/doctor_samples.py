"""Machines, task reports and configs for tests of the doctor's verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pyspark
from pyspark.sql import SparkSession

from sparkring.conf.loading import load_config
from sparkring.spark_jobs.diagnosis.needs import Needs
from sparkring.spark_jobs.diagnosis.survey import Machine, TaskReport

PACKAGES: dict[str, dict[str, Any]] = {
    "sparkring": {"version": "0.1.0"}, "numpy": {"version": "1.26.4"}, "pyarrow": {"version": "14.0.2"}, "petastorm": {"version": "0.13.1"},
    "torch": {"version": "2.13.0", "threads": 1, "cuda_devices": 0}, "horovod": {"version": "0.28.1", "gloo": True, "nccl": True}}


def machine(*, host: str = "alpha", free_mb: float = 64_000, packages: Mapping[str, dict[str, Any]] = MappingProxyType({}),
            **changes: Any) -> Machine:
    """A machine that lacks nothing; ``packages`` replace single ones."""
    whole = Machine(host=host, python="3.11.7", executable="/usr/bin/python3.11", cpus=8, free_memory=int(free_mb * 1e6),
                    free_shared=32_000_000_000, packages={**PACKAGES, **packages})
    return replace(whole, **changes)


def task(where: Machine | None = None, **changes: Any) -> TaskReport:
    """A task that found all in order."""
    return replace(TaskReport(machine=where or machine(), address="10.0.0.1", interface="eth0"), **changes)


def needs(*overrides: str) -> Needs:
    """What the shipped local job needs, with ``--set`` overrides."""
    return Needs.of(load_config("local/flights", overrides))


def session(**settings: str) -> SparkSession:
    """Something with the properties of a session, ``__`` for each dot; tests in tests/spark look at real ones."""
    values = {key.replace("__", "."): value for key, value in settings.items()}
    return cast("SparkSession", SimpleNamespace(conf=SimpleNamespace(get=values.get), version=pyspark.__version__))
