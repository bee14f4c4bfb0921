"""One job in a cell: a month of real flights prepared, trained on two ranks, evaluated, scored, reported and audited, by the command line.

If asked, texts are prepared, too. What must be equal in all cells is computed here, with this environment's libraries: the digest of the
row ids that the ranks read, and those of all encoded values.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from harness.cell_environments import ROOT, CellFailure, call, clean_environment, java_of
from harness.small_configs import january_flights, three_packages
from sparkring.pipelines.data.dataset.versions import Dataset

SHORT_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that lives for seconds pays less for these than it gains."""
JOB_S = 900.0
PETASTORM = """
import sys
from petastorm import make_batch_reader, make_reader
with make_batch_reader(sys.argv[1], reader_pool_type="thread", workers_count=1, num_epochs=1) as reader:
    batches = sum(len(batch.row_id) for batch in reader)
with make_reader(sys.argv[2], reader_pool_type="thread", workers_count=1, num_epochs=1) as reader:
    rows = sum(1 for _ in reader)
print("rows", batches, rows)
"""
"""Petastorm's own readers, which this dataset was not written with: rows of the train split in batches, of the test split one by one."""


@dataclass(frozen=True)
class JobFigures:
    """What a job did."""

    rows: int
    """Rows of the train split, each proved to have been read exactly once an epoch."""
    rows_digest: str
    """Of their ids."""
    values_sha256: str
    """Of all encoded values of all splits."""
    texts_sha256: str
    """Of all rows of texts; empty if none were prepared."""
    scored: int
    """Rows with a prediction."""
    auc: float
    """Of the network on the test split."""
    seconds: float


def run_job(python: Path, folder: Path, *, texts: bool = False) -> JobFigures:
    """Run the job with the sparkring of an environment, in ``folder``, a new one.

    Args:
        python: The environment's interpreter.
        folder: All that the job writes.
        texts: Prepare texts, too; these are the sources of this process's Python, in all cells.

    Raises:
        CellFailure: a command failed, or what it did does not add up.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = january_flights(folder)
    _sparkring(python, folder, "doctor", config)  # ends with another code than 0 if a check fails
    began = time.perf_counter()
    done = _sparkring(python, folder, "demo", config)
    seconds = time.perf_counter() - began
    proof = _sparkring(python, folder, "audit", config)
    manifest = Dataset(done["dataset"]["url"]).manifest()
    train, test = manifest.splits["train"], manifest.splits["test"]
    if not proof["finished"] or (proof["rows"], proof["rows_digest"]) != (train.rows, train.rows_digest):
        raise CellFailure(f"the audit proved {proof}, and the manifest has {train.rows} rows of digest {train.rows_digest}")
    if done["scores"]["rows"] != test.rows:
        raise CellFailure(f"{done['scores']['rows']} of {test.rows} rows were scored")
    read = _petastorm(python, folder, done["dataset"]["url"], manifest.data_id)
    if read != (train.rows, test.rows):
        raise CellFailure(f"Petastorm's readers read {read} of {(train.rows, test.rows)} rows")
    packed = _sparkring(python, folder, "prepare", _texts(folder))["url"] if texts else None
    return JobFigures(rows=train.rows, rows_digest=train.rows_digest, values_sha256=values_sha256(done["dataset"]["url"]),
                      texts_sha256=values_sha256(packed) if packed else "",
                      scored=done["scores"]["rows"], auc=done["evaluation"]["network"]["auc"], seconds=seconds)


def values_sha256(dataset_url: str) -> str:
    """SHA-256 of all values of the latest version, by split, column and row id, whatever the bytes of its files are."""
    manifest, digest = Dataset(dataset_url).manifest(), hashlib.sha256()
    for name, split in sorted(manifest.splits.items()):
        files = (pq.ParquetFile(Path(dataset_url.removeprefix("file://")) / file.path) for file in split.files)
        table = pa.concat_tables(file.read() for file in files).sort_by(manifest.row_id)
        for column in sorted(table.column_names):
            digest.update(f"{name} {column} {table[column].type}".encode())
            values = table[column]
            digest.update(b"".join(values.to_pylist()) if pa.types.is_binary(values.type) else values.to_numpy().tobytes())
    return digest.hexdigest()


def _texts(folder: Path) -> str:
    config = folder / "texts.yaml"
    config.write_text(yaml.safe_dump({
        "extends": three_packages(folder), "prepare": {"sources": {"library": {"path": sysconfig.get_path("stdlib")}}}}), encoding="utf-8")
    return str(config)


def _sparkring(python: Path, folder: Path, *words: str) -> Any:
    own = {"PYTHONPATH": str(ROOT)} if python == Path(sys.executable) else {}  # this checkout, whatever is installed here
    out = call(python, "-m", "sparkring", *words, "--json", cwd=folder, within_s=JOB_S, SPARK_SUBMIT_OPTS=SHORT_JVM,
               OMP_NUM_THREADS="1", PATH=f"{python.parent}{os.pathsep}{clean_environment()['PATH']}", **own, **java_of(python))
    return json.loads(out.splitlines()[-1])


def _petastorm(python: Path, folder: Path, url: str, data_id: str) -> tuple[int, ...]:
    splits = [f"{Path(url.removeprefix('file://')).as_uri()}/data/{data_id}/{name}" for name in ("train", "test")]
    said = call(python, "-c", PETASTORM, *splits, cwd=folder, within_s=JOB_S)  # Petastorm says things of its own, too
    (found,) = (line.split()[1:] for line in said.splitlines() if line.startswith("rows "))
    return tuple(map(int, found))

