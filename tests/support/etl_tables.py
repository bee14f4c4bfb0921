"""A small source with planted facts, the config that prepares it, and what must come out, worked out without Spark.

900 trips over 90 days of 2020: days 0 to 59 train, 60 to 74 validate, 75 to 89 test. A trip is late when it is long,
with a little noise; ``city`` has a rare value (Rome, 3 trips), one that only test rows have (Oslo), and nulls.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import torch

from sparkring.conf.loading import parse_config
from sparkring.conf.schema import Config
from sparkring.models.build import build_model
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.training.job.model_files import ModelCard, save_model
from sparkring.pipelines.training.job.tasks import shapes_of
from tests.support.runs import begin_run

START = datetime(2020, 1, 1, tzinfo=UTC)
VALIDATION_FROM, TEST_FROM = START + timedelta(days=60), START + timedelta(days=75)
COLUMNS = {"id": "bigint", "day": "timestamp", "km": "double", "city": "string", "late": "int"}
QUERY = "SELECT id * 10 AS row_id, day, late, km, km * km AS km2, city FROM trips"


@dataclass(frozen=True)
class Trip:
    """One row of the source; None is written as ``NA``."""

    id: int
    day: datetime
    km: float | None
    city: str | None
    late: int | None


def trips(count: int = 900) -> list[Trip]:
    """The same trips every time."""
    chance = random.Random(7)
    made = []
    for number in range(count):
        day = START + timedelta(days=90 * number // count, hours=number % 24)
        km = round(chance.uniform(1, 100), 3)
        city = chance.choice(["Bern", "Bern", "Cork", None])
        city = "Rome" if number in (5, 6, 7) else "Oslo" if day >= TEST_FROM and number % 7 == 0 else city
        late = int(km + chance.uniform(-20, 20) > 50)
        made.append(Trip(number, day, None if number % 50 == 3 else km, city, None if number % 100 == 17 else late))
    return made


def write_trips(path: Path, rows: Iterable[Trip], *, columns: Sequence[str] = tuple(COLUMNS)) -> None:
    """Write a CSV with a header and one column (``note``) that no config declares."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "note"])
        for row in rows:
            values = {name: "NA" if value is None else value for name, value in asdict(row).items()}
            values["day"] = row.day.isoformat()
            writer.writerow([*(values[name] for name in columns), "x"])


def etl_config(folder: Path, rows: Iterable[Trip] | None = None, **prepare: Any) -> Config:
    """A config that prepares ``folder/trips.csv`` (written here if ``rows`` are given or it is not there) in ``folder/workspace``."""
    source = folder / "trips.csv"
    if rows is not None or not source.exists():
        write_trips(source, trips() if rows is None else rows)
    settings: dict[str, Any] = {
        "sources": {"trips": {"path": str(source), "null_value": "NA", "columns": COLUMNS}},
        "query": QUERY, "label": "late", "features": {"numeric": ["km", "km2"], "categorical": ["city"]},
        "split": {"column": "day", "validation_from": VALIDATION_FROM, "test_from": TEST_FROM},
        "min_category_rows": 4, "num_files": 2, **prepare}
    return parse_config({"name": "trips", "workspace": str(folder / "workspace"), "run": "first", "model": {"hidden": [8]},
                         "prepare": settings}, origin="test")


def split_of(trip: Trip) -> str:
    """The split that a trip belongs to."""
    return "train" if trip.day < VALIDATION_FROM else "validation" if trip.day < TEST_FROM else "test"


def examples(name: str, rows: Iterable[Trip] | None = None) -> list[Trip]:
    """The trips of a split, without those that have no label."""
    return [trip for trip in (trips() if rows is None else rows) if split_of(trip) == name and trip.late is not None]


def save_untrained(config: Config, *, seed: int = 0) -> ModelCard:
    """Commit a network with random weights as the model of the run of ``config``, trained on the latest dataset version."""
    manifest = Dataset(config.dataset).manifest()
    begin_run(config)
    torch.manual_seed(seed)
    model = build_model(config.model, shapes_of(manifest.task, manifest.preprocessing))
    return save_model(config.run_url, model.state_dict(), ModelCard(
        name=config.name, model=config.model, task=manifest.task, preprocessing=manifest.preprocessing, dataset_url=config.dataset,
        dataset_version=manifest.version, content_id=manifest.content_id, epoch=1, step=1, validation={}, code_version="0"))
