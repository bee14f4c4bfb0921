"""A small, complete config for tests that need one, as plain values and as a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

MINIMAL: dict[str, Any] = {
    "name": "tiny",
    "workspace": "runs/tiny",
    "run": "first",
    "prepare": {
        "sources": {"trips": {"path": "trips.csv", "columns": {"id": "bigint", "late": "int", "day": "timestamp", "km": "double"}}},
        "query": "SELECT id AS row_id, late, day, km FROM trips",
        "label": "late",
        "features": {"numeric": ["km"]},
        "split": {"column": "day", "validation_from": "2013-10-01T00:00:00Z", "test_from": "2013-11-01T00:00:00Z"},
    },
}


def write(folder: Path, name: str, values: object) -> str:
    """Write ``values`` (or a text as it is) to ``folder/name``; returns the path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values), encoding="utf-8")
    return str(path)
