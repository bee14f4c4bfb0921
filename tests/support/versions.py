"""prepare without Spark: commits versions of ready Parquet files to any store, and looks whether all that is visible is whole."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from sparkring.pipelines.data.dataset.commit import commit_version
from sparkring.pipelines.data.dataset.manifest import Manifest, Split
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.order.rowhash import add, rows_digest, to_hex
from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.local import LocalStore
from sparkring.spark_jobs.etl.writing.write_dataset import collect_files, read_back


@dataclass(frozen=True)
class Writer:
    """Commits the content of one local dataset, again and again, to another place."""

    template: Dataset
    """A local dataset (``datasets.write_dataset``); its latest version is what is written."""
    staging: Path | None = None
    """Where Spark would write when it cannot write to the store itself; None: into the store, which is then a local one."""

    def commit(self, url: str) -> Manifest:
        """Commit the next version at ``url`` as prepare does."""
        dataset = Dataset(url)
        return commit_version(dataset, lambda folder: self.write(dataset.store, folder), lambda *made: self.manifest(dataset, *made))

    def write(self, store: Store, folder: str) -> dict[str, Split]:
        """All splits: Spark's part by copying, then prepare's own functions."""
        made = self.template.manifest()
        area = LocalStore(self.staging) if self.staging else store
        splits = {}
        for name, split in made.splits.items():
            spread = f"{folder}/.{name}.writing"
            for number, file in enumerate(split.files):
                target = Path(area.path(f"{spread}/part-{number:05d}-0-c000.snappy.parquet"))
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.template.store.path(file.path), target)
            collect_files(area, spread, store, f"{folder}/{name}", num_files=len(split.files))
            splits[name] = read_back(store, f"{folder}/{name}", made.fields)
        return splits

    def manifest(self, dataset: Dataset, data_id: str, splits: dict[str, Split]) -> Manifest:
        """The manifest of the next version."""
        parent = max(dataset.versions(), default=None)
        return self.template.manifest().model_copy(
            update={"version": (parent or 0) + 1, "parent": parent, "data_id": data_id, "splits": splits})


def damage(dataset: Dataset, version: int) -> str | None:
    """What is wrong with a visible version; None if all files are there, with the bytes and the rows that its manifest names."""
    try:
        manifest = dataset.manifest(version)
        for name, split in manifest.splits.items():
            digests = []
            for file in split.files:
                data = dataset.store.read(file.path)
                if (len(data), hashlib.sha256(data).hexdigest()) != (file.bytes, file.sha256):
                    return f"{file.path} is not what the manifest says"
                with dataset.store.open_input(file.path) as source:
                    (ids,) = pq.read_table(source, columns=[manifest.row_id]).columns
                digests.append(rows_digest(ids.to_numpy()))
            if to_hex(add(digests)) != split.rows_digest:
                return f"{name} has other rows"
    except (OSError, ValueError) as error:
        return str(error)
    return None
