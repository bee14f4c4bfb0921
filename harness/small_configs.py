"""The shipped jobs on a small part of their own data: to run all of a job on Spark within a minute. Each is a YAML file in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from sparkring.conf.loading import load_config

TWO_OF_TWO: dict[str, Any] = {"num_ranks": 4, "parallel": {"replicas": [2, 2], "micro_batches": 8}}
"""A ``train`` section: two stages, each on two ranks."""


def january_flights(folder: Path, **train: Any) -> str:
    """The flights network on the flights of January 2013: about 17,000 to train on, 5,000 to validate with, 4,000 to test with."""
    query = load_config("base/flights").prepare.query
    small = query.replace("FROM flights\n", "FROM flights WHERE month = 1\n")
    assert small != query, "the shipped query reads the flights in other words"
    return _write(folder, "january.yaml", {
        "extends": "local/flights", "workspace": str(folder / "flights"),
        "prepare": {"query": small, "split": {"validation_from": "2013-01-20T05:00:00Z", "test_from": "2013-01-26T05:00:00Z"}},
        "model": {"hidden": [64, 32, 16]},
        "train": {"epochs": 1, "batch_rows": 256, "optimizer": {"lr": 0.003, "weight_decay": 0.1, "schedule": "constant"}, **train}})


def three_packages(folder: Path, **train: Any) -> str:
    """The decoder on three packages of Python's library, one a split: about 750 rows of 64 bytes to train on."""
    return _write(folder, "packages.yaml", {
        "extends": "local/python-text", "workspace": str(folder / "text"),
        "prepare": {
            "query": """
                SELECT path, content, CASE package WHEN 'json' THEN 'train' WHEN 'tomllib' THEN 'validation' ELSE 'test' END AS part
                FROM (SELECT *, split(path, '/')[0] AS package FROM library)
                WHERE package IN ('json', 'tomllib', 'zoneinfo')""",
            "features": {"tokens": {"length": 64}}},
        "model": {"width": 32, "layers": 2, "heads": 2},
        "train": {"epochs": 1, "batch_rows": 96, "optimizer": {"warmup_steps": 2}, **train}})


def _write(folder: Path, name: str, values: dict[str, Any]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return str(path)
