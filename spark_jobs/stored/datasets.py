"""``sparkring datasets list | show | diff | verify``: the versions of a dataset, and whether its files are unchanged.

Plain functions that need neither Spark nor a ring, and change nothing; ``dataset_gc.py`` deletes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import numpy as np

from sparkring.conf.schema import TEXT_TASKS
from sparkring.errors import DatasetChanged
from sparkring.pipelines.data.dataset.integrity import verify_document, verify_files
from sparkring.pipelines.data.dataset.manifest import DataFile, Manifest
from sparkring.pipelines.data.dataset.manifest_diff import Difference, diff_manifests
from sparkring.pipelines.data.dataset.row_schema import LABEL
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.reader import SplitReader
from sparkring.pipelines.data.order.row_order import MIN_LANES, EpochOrder, Int64s, Window, group_rows
from sparkring.pipelines.data.order.shuffle_quality import Floats, lag1_correlation, owner_change, stream_labels
from sparkring.spark_jobs.spark.progress import SILENT, Progress

RING_WIDTHS = (2, 4, 8)
EPOCHS, MANY_GROUPS = 9, 10_000
"""Epochs over which owner changes are averaged, because few row groups leave much to chance; two epochs suffice for many groups."""
SAMPLE_ROWS = 200_000
"""Rows whose labels are read to measure how they follow each other."""


@dataclass(frozen=True)
class VersionSummary:
    """One committed version."""

    version: int
    parent: int | None
    created_at: str
    task: str
    rows: dict[str, int]
    """Rows of each split."""
    files: int
    bytes: int
    content_id: str


@dataclass(frozen=True)
class ShuffleQuality:
    """How well the order mixes the train split; see ``pipelines/data/order/shuffle_quality.py``."""

    owner_change: dict[int, float]
    """Ring width -> share of the rows that another rank reads in the next epoch."""
    lag1_in_order: float | None
    """Correlation of the label with the next row's in the stream; None if labels are not numbers."""
    lag1_in_files: float | None
    """The same in the order of the files, as a reader without a shuffle would see it."""
    rows: int
    """Rows of which the correlations are computed."""


@dataclass(frozen=True)
class VersionDetails:
    """One version in detail."""

    url: str
    manifest: Manifest
    quality: ShuffleQuality | None
    """None if there is no train split."""


def list_versions(url: str) -> list[VersionSummary]:
    """The versions of the dataset at ``url``, oldest first."""
    dataset = Dataset(url)
    return [_summary(dataset.manifest(version)) for version in dataset.versions()]


def show_version(url: str, version: int | None = None) -> VersionDetails:
    """A version's manifest and how well its rows are mixed; reads the labels of some rows.

    Raises:
        DatasetVersionNotFound: there is no such version.
    """
    dataset = Dataset(url)
    manifest = dataset.manifest(version)
    return VersionDetails(dataset.url, manifest, shuffle_quality(dataset, manifest) if manifest.splits.get("train") else None)


def diff_versions(url: str, before: int, after: int) -> list[Difference]:
    """The differences between two versions of the dataset at ``url``."""
    dataset = Dataset(url)
    return diff_manifests(dataset.manifest(before), dataset.manifest(after))


def verify_version(url: str, version: int | None = None, *, progress: Progress = SILENT) -> VersionSummary:
    """Check the SHA-256 of every file of a version, and that nobody edited its manifest.

    Raises:
        DatasetChanged: a file is missing, changed or extra, or a manifest was edited; each is named.
    """
    dataset = Dataset(url)
    manifest = dataset.manifest(version)
    summary = _summary(manifest)
    with progress.stage("verify", total=summary.bytes) as bar:
        done = 0

        def report_file(file: DataFile) -> None:
            nonlocal done
            done += file.bytes
            bar.update(done, total=summary.bytes, text=file.path)

        findings = [*verify_document(dataset, manifest.version), *verify_files(dataset.store, manifest, on_file=report_file)]
    if findings:
        raise DatasetChanged(dataset.url, version=manifest.version, findings=list(map(str, findings)))
    return summary


def shuffle_quality(dataset: Dataset, manifest: Manifest, *, sample_rows: int = SAMPLE_ROWS) -> ShuffleQuality:
    """Measure how the train split's order mixes.

    Args:
        dataset: The dataset.
        manifest: The manifest of the version.
        sample_rows: The most rows whose labels are read.
    """
    rows = group_rows([file.row_groups for file in manifest.splits["train"].files])
    orders = [EpochOrder(rows, seed=1, epoch=epoch, lanes=MIN_LANES) for epoch in range(EPOCHS if len(rows) <= MANY_GROUPS else 2)]
    changes = {width: fmean(owner_change(one, other, num_ranks=width) for one, other in pairwise(orders)) for width in RING_WIDTHS}
    first = orders[0]
    if manifest.task in TEXT_TASKS:  # its labels are sequences
        return ShuffleQuality(changes, None, None, 0)
    reader = SplitReader(dataset.store, manifest, "train", tensors=[LABEL])

    def labels(group: int, start: int, stop: int, order: Int64s) -> Floats:
        return np.asarray(reader.read(group, start, stop, order)[LABEL].take(0, stop - start), dtype=np.float64)

    def of_window(window: Window) -> Floats:
        return labels(window.group, window.start, window.stop, first.shuffle(window))

    in_order = stream_labels(first, of_window, most_rows=sample_rows)
    groups = int(np.searchsorted(np.cumsum(rows), sample_rows)) + 1
    in_files = [labels(group, 0, count, np.arange(count)) for group, count in enumerate(rows[:groups].tolist()) if count]
    return ShuffleQuality(changes, lag1_correlation(in_order), lag1_correlation(np.concatenate([np.empty(0), *in_files])), len(in_order))


def _summary(manifest: Manifest) -> VersionSummary:
    files = manifest.files
    return VersionSummary(
        version=manifest.version, parent=manifest.parent, created_at=manifest.created_at, task=manifest.task,
        rows={name: split.rows for name, split in manifest.splits.items()}, files=len(files), bytes=sum(file.bytes for file in files),
        content_id=manifest.content_id)
