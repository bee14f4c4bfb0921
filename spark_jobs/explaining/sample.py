"""Rows of a split in memory, as the network takes them: all of a small split, else a fair sample.

Whole row groups are drawn at random over all files, so a sample is fair even where the rows of a file are in order. Reads by pyarrow,
without Spark.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkring.pipelines.data.dataset.manifest import DataFile, Manifest
from sparkring.pipelines.data.dataset.stored_columns import changed_columns, changes
from sparkring.pipelines.data.loading.page_checksums import read_verified
from sparkring.pipelines.data.stores.base import Store

MOST_ROWS = 100_000
MOST_CELLS = 10_000_000
"""Of a sample: 80 MB of ids, 40 MB of numbers."""


@dataclass(frozen=True)
class Rows:
    """Encoded rows."""

    numeric: NDArray[np.float32]
    """(rows, numeric columns), in the order in which the network takes them."""
    ids: NDArray[np.int64]
    """(rows, columns with ids)."""
    labels: NDArray[np.float64]
    """(rows,): 0 or 1, a class's number, or the number itself."""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, places: NDArray[np.int64] | slice) -> Rows:
        """Some of the rows."""
        return Rows(self.numeric[places], self.ids[places], self.labels[places])


def read_sample(store: Store, manifest: Manifest, split: str, *, seed: int = 0) -> Rows:
    """Read at most ``MOST_ROWS`` rows of a split of a table.

    Args:
        store: The dataset's.
        manifest: The version.
        split: The split's name.
        seed: Of the draw.
    Raises:
        DatasetError: a page is damaged.
        StorageError: a file cannot be read.
    """
    encoded = manifest.preprocessing
    numbers, with_ids = list(encoded.numeric_columns), [feature.column for feature in encoded.with_ids]
    names, random = [*numbers, *with_ids, manifest.label], np.random.default_rng(seed)
    most = min(MOST_ROWS, MOST_CELLS // len(names))
    tables = []
    for file, groups in _drawn(manifest.splits[split].files, most, random):
        with store.open_input(file.path) as source:
            tables.append(read_verified(source, path=store.path(file.path), columns=names, groups=groups).select(names))
    columns = changed_columns(dict(zip(names, (column.to_numpy() for column in pa.concat_tables(tables).columns), strict=True)),
                              changes(manifest.stored, encoded))
    rows = len(columns[manifest.label])
    kept = slice(None) if rows <= most else np.sort(random.choice(rows, most, replace=False))
    numeric, ids = np.empty((min(rows, most), len(numbers)), np.float32), np.empty((min(rows, most), len(with_ids)), np.int64)
    for matrix, of_matrix in ((numeric, numbers), (ids, with_ids)):
        for place, name in enumerate(of_matrix):
            matrix[:, place] = columns[name][kept]
    return Rows(numeric, ids, columns[manifest.label][kept].astype(np.float64))


def _drawn(files: tuple[DataFile, ...], most: int, random: np.random.Generator) -> list[tuple[DataFile, list[int]]]:
    """Row groups by file, drawn until they hold ``most`` rows, or all."""
    listed = [(place, group, rows) for place, file in enumerate(files) for group, rows in enumerate(file.row_groups) if rows]
    drawn: dict[int, list[int]] = {}
    held = 0
    for number in random.permutation(len(listed)):
        if held >= most:
            break
        place, group, rows = listed[number]
        drawn.setdefault(place, []).append(group)
        held += rows
    return [(files[place], sorted(groups)) for place, groups in sorted(drawn.items())]
