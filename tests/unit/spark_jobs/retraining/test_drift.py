"""Drift of the rows that came since, between two committed versions: none without new files, and the planted column leads."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.datasets import NUMERIC, write_dataset
from harness.parquet_files import write_parquet
from sparkring.pipelines.data.dataset.manifest import DataFile, Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.retraining.drift import stability_indices


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Manifest, Manifest]:
    """A dataset of 8,000 rows, and a later version with one more file, in which ``height`` has moved by a deviation."""
    folder = tmp_path_factory.mktemp("drift")
    dataset = write_dataset(folder, [[4_000], [4_000]])
    before = dataset.manifest()
    chance, rows = np.random.default_rng(3), 4_000
    table = pq.read_table(folder / before.splits["train"].files[0].path).slice(0, rows)
    for name in NUMERIC:
        moved = chance.standard_normal(rows) + (1.0 if name == "height" else 0.0)
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), pa.array(moved.astype(np.float32)))
    write_parquet(table, folder / "new.parquet")
    new = DataFile(path="new.parquet", bytes=1, sha256="0" * 64, row_groups=(rows,), row_group_bytes=(1,))
    train = before.splits["train"]
    grown = train.model_copy(update={"files": (*train.files, new), "rows": train.rows + rows})
    return dataset, before, before.model_copy(update={"version": 2, "splits": before.splits | {"train": grown}})


def test_the_column_that_moved_leads_and_the_others_stay_small(versions: tuple[Dataset, Manifest, Manifest]) -> None:
    dataset, before, after = versions
    found = stability_indices(dataset.store, before, after)
    assert set(found) == {*NUMERIC, "colour"}
    assert max(found, key=lambda name: found[name]) == "height"
    assert found["height"] > 0.5
    assert max(index for name, index in found.items() if name != "height") < 0.05


def test_without_a_new_file_nothing_has_drifted(versions: tuple[Dataset, Manifest, Manifest]) -> None:
    dataset, before, _ = versions
    assert stability_indices(dataset.store, before, before) == {}
