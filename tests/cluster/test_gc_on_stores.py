"""Clearing away on S3 and HDFS what killed writers left; local disk, ages and damaged manifests: tests/unit/data/test_datasets.py."""

from __future__ import annotations

from pathlib import Path

from harness.datasets import write_dataset
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.stored.dataset_gc import collect_garbage
from tests.support.versions import Writer, damage

pytest_plugins = ["tests.support.places"]

LEFT, FOREIGN = "data/0123456789abcdef", "data/my-own-files"


def test_what_no_version_names_goes_and_what_one_names_stays(place: str, tmp_path: Path) -> None:
    writer = Writer(write_dataset(tmp_path / "made", [[5, 3]], validation_rows=4), staging=tmp_path / "staging")
    staged = writer if "://" in place else Writer(writer.template)
    for _ in range(2):
        staged.commit(place)
    dataset = Dataset(place)
    for name in (f"{LEFT}/train/part-00000.parquet", f"{LEFT}/.test.writing/_temporary/0/part", f"{FOREIGN}/part-00000.parquet"):
        dataset.store.put(name, b"x" * 50)
    assert collect_garbage(place, delete=True).young == (LEFT,)  # it may be a prepare that still runs
    looked = collect_garbage(place, grace_hours=-1)  # an hour from now, as it were
    assert (looked.garbage, looked.young, looked.deleted) == ({LEFT: 100}, (), False)
    assert dataset.store.size(f"{LEFT}/train/part-00000.parquet") == 50
    assert collect_garbage(place, delete=True, grace_hours=-1).deleted
    assert list(dataset.store.tree(LEFT)) == []
    assert dataset.store.size(f"{FOREIGN}/part-00000.parquet") == 50
    assert [damage(dataset, version) for version in dataset.versions()] == [None, None]
    assert collect_garbage(place, grace_hours=-1).garbage == {}
