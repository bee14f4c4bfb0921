"""How far the rows that came since the champion was trained have drifted from its train rows.

Both are read as they are encoded, from the first row groups of their files, whose rows are in random order. Rows that came since are
those of files that the champion's dataset version does not have; of a rolling split that includes the held-out rows, which are written
again with each version.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.stores.base import Store
from sparkring.spark_jobs.etl.drift import sample_rows, stability_index

BINS = 10
"""Of numbers; each holds an equal share of the train rows."""
NAMED = 10
"""Features whose indices are kept."""


def stability_indices(store: Store, trained: Manifest, now: Manifest) -> dict[str, float]:
    """Each feature's population stability index; empty if no file is new.

    Args:
        store: The dataset's.
        trained: The version that the champion was trained on.
        now: A later version of the same encoding.
    """
    known = {file.path for file in trained.files}
    new = [file for split in now.splits.values() for file in split.files if file.path not in known]
    encoded = trained.preprocessing
    numbers, categories = list(encoded.numeric_columns), [feature.column for feature in encoded.with_ids]
    if not new or not (numbers or categories):
        return {}
    columns = [*numbers, *categories]
    before, after = (sample_rows(store, files, columns) for files in (trained.splits["train"].files, new))
    return {name: _index(before[name], after[name], number=name in set(numbers)) for name in columns}


def largest(indices: Mapping[str, float]) -> dict[str, float]:
    """The ``NAMED`` features that have drifted furthest, the first of them most."""
    return dict(sorted(indices.items(), key=lambda one: -one[1])[:NAMED])


def _index(before: NDArray[np.float64], after: NDArray[np.float64], *, number: bool) -> float:
    edges = np.unique(np.quantile(before, np.arange(1, BINS) / BINS))
    bins = [np.searchsorted(edges, values, side="right") if number else values.astype(np.int64) for values in (before, after)]
    size = max(int(places.max(initial=0)) for places in bins) + 1
    return stability_index(*(np.bincount(places, minlength=size) for places in bins))
