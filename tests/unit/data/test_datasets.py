"""What the datasets commands are made of: listing, differences, how well rows are mixed, and what is garbage."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.datasets import write_dataset
from sparkring.errors import DatasetChanged, DatasetError, DatasetVersionNotFound, StorageError
from sparkring.pipelines.data.dataset.integrity import row_group_bytes
from sparkring.pipelines.data.dataset.manifest import DataFile, Manifest, Split, content_id
from sparkring.pipelines.data.dataset.manifest_diff import Difference, diff_manifests
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.data.dataset.row_schema import DataField, TensorSpec
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.order.row_order import EpochOrder
from sparkring.pipelines.data.order.shuffle_quality import lag1_correlation, owner_change
from sparkring.spark_jobs.stored.dataset_gc import collect_garbage
from sparkring.spark_jobs.stored.datasets import diff_versions, list_versions, show_version, verify_version

GROUPS = np.array([500] * 40, dtype=np.int64)


def _order(epoch: int, *, lanes: int = 24) -> EpochOrder:
    return EpochOrder(GROUPS, seed=1, epoch=epoch, lanes=lanes)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_rank_s_rows_change_from_epoch_to_epoch_as_much_as_chance_would_have_it(ranks: int) -> None:
    changes = [owner_change(_order(epoch), _order(epoch + 1), num_ranks=ranks) for epoch in range(10)]
    assert np.mean(changes) == pytest.approx(1 - 1 / ranks, abs=0.1)


def test_control_with_one_rank_or_one_order_no_row_changes_hands() -> None:
    assert owner_change(_order(0), _order(1), num_ranks=1) == 0
    assert owner_change(_order(4), _order(4), num_ranks=2) == 0  # as with fixed shards, which is Petastorm's way


def test_owner_change_counts_rows_as_a_look_at_each_row_does() -> None:
    groups = np.array([7, 0, 31, 2, 18], dtype=np.int64)
    one, other = (EpochOrder(groups, seed=9, epoch=epoch, lanes=5) for epoch in (0, 1))

    def owners(order: EpochOrder) -> list[int]:
        owner, begins = [-1] * order.rows, np.cumsum([0, *groups])
        for lane in range(order.lanes):
            for window in order.windows(lane):
                for row in range(window.start, window.stop):
                    owner[int(begins[window.group]) + row] = lane % 3
        return owner

    changed = sum(before != after for before, after in zip(owners(one), owners(other), strict=True))
    assert owner_change(one, other, num_ranks=3) == pytest.approx(changed / one.rows)


def test_lag_1_correlation_by_hand() -> None:
    assert lag1_correlation(np.array([0.0, 0, 0, 1, 1, 1])) == pytest.approx(2 / 3)
    assert lag1_correlation(np.array([0.0, 1, 0, 1, 0])) == pytest.approx(-1)
    assert lag1_correlation(np.array([1.0, 1, 1, 1])) == 0
    assert lag1_correlation(np.empty(0)) == 0


def _sorted_by_label(folder: Path) -> Dataset:
    """8 files of 5 row groups of 250 rows: the first half of the rows has label 0, the second label 1."""
    fields = (DataField(name="id", dtype="int64"), DataField(name="late", dtype="int8"))
    files = []
    for number in range(8):
        path = folder / f"data/d1/train/part-{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        ids = np.arange(number * 1250, (number + 1) * 1250)
        table = pa.table({"id": ids, "late": (ids >= 5000).astype(np.int8)})
        pq.write_table(table.cast(pa.schema([pa.field(each.name, each.type, nullable=False) for each in table.schema])), path,
                       row_group_size=250)
        files.append(DataFile(path=str(path.relative_to(folder)), bytes=path.stat().st_size, sha256="0" * 64, row_groups=(250,) * 5,
                              row_group_bytes=row_group_bytes(pq.read_metadata(path))))
    splits = {"train": Split(files=tuple(files), rows=10_000, rows_digest="0" * 16)}
    dataset = Dataset(str(folder))
    dataset.commit(Manifest(
        version=1, parent=None, data_id="d1", content_id=content_id(fields, splits), recipe_id="", created_at="", code_version="",
        row_id="id", label="late", fields=fields, tensors=(TensorSpec(name="label", dtype="float32", fields=("late",), stacked=False),),
        splits=splits, preprocessing=Preprocessing(numeric=(), categorical=(), train_rows=10_000), recipe={}, source={}))
    return dataset


def test_rows_sorted_by_label_come_mixed_and_change_hands(tmp_path: Path) -> None:
    quality = show_version(_sorted_by_label(tmp_path).url).quality
    assert quality is not None
    assert quality.rows == 10_000
    assert quality.lag1_in_files == pytest.approx(1, abs=0.001)
    assert quality.lag1_in_order is not None
    assert abs(quality.lag1_in_order) < 0.25
    assert quality.owner_change[2] == pytest.approx(0.5, abs=0.2)
    assert quality.owner_change[8] == pytest.approx(0.875, abs=0.1)


def test_versions_are_listed_and_shown(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, ([40, 30], [50]))
    (summary,) = list_versions(str(tmp_path))
    assert (summary.version, summary.parent, summary.rows, summary.files) == (1, None, {"train": 120, "validation": 257}, 3)
    details = show_version(str(tmp_path))
    assert details.manifest == dataset.manifest()
    assert details.quality is not None
    assert details.quality.rows == 120
    assert list_versions(str(tmp_path / "nowhere")) == []
    with pytest.raises(DatasetVersionNotFound):
        show_version(str(tmp_path), 4)


def test_verify_tells_what_is_there_or_names_what_is_not(tmp_path: Path) -> None:
    write_dataset(tmp_path, ([40, 30], [50]))
    assert verify_version(str(tmp_path)).files == 3
    with (tmp_path / "data/d1/train/part-1.parquet").open("ab") as file:
        file.write(b"!")
    with pytest.raises(DatasetChanged, match=r"data/d1/train/part-1\.parquet is longer than it was"):
        verify_version(str(tmp_path))


def _second(dataset: Dataset, change: Callable[[Manifest], Manifest]) -> list[Difference]:
    first = dataset.manifest(1)
    dataset.commit(change(first).model_copy(update={"version": 2, "parent": 1}))
    return diff_versions(dataset.url, 1, 2)


def test_a_version_differs_from_an_equal_one_in_nothing(tmp_path: Path) -> None:
    assert _second(write_dataset(tmp_path, ([40],)), lambda manifest: manifest) == []


def test_differences_of_schema_rows_statistics_and_vocabulary_are_told(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, ([40],))

    def change(first: Manifest) -> Manifest:
        preprocessing = first.preprocessing.model_dump()
        preprocessing["numeric"][0]["mean"] = 1.5
        preprocessing["categorical"][0]["vocabulary"] = ["green", "red", "pink"]
        return first.model_copy(update={
            "fields": (*first.fields[:-1], DataField(name="hue", dtype="int16", nullable=True)),
            "preprocessing": Preprocessing.model_validate(preprocessing),
            "splits": first.splits | {"train": first.splits["train"].model_copy(update={"rows": 41})},
            "recipe": {"seed": 2}})

    found = {(each.section, each.what): (each.before, each.after) for each in _second(dataset, change)}
    assert found["schema", "colour"] == ("int32", "")
    assert found["schema", "hue"] == ("", "int16, may be null")
    assert found["rows", "train.rows"] == ("40", "41")
    assert found["preprocessing", "numeric.height.mean"] == ("0", "1.5")
    assert found["preprocessing", "categorical.colour.vocabulary"] == ("3 values", "3 values; new: pink; gone: blue")
    assert found["recipe", "seed"] == ("", "2")
    assert len(found) == 6


def test_the_difference_is_the_same_the_other_way_round(tmp_path: Path) -> None:
    one, other = (write_dataset(tmp_path / str(rows), ([rows],)).manifest() for rows in (40, 50))
    there, back = diff_manifests(one, other), diff_manifests(other, one)
    assert [(each.what, each.before, each.after) for each in there] == [(each.what, each.after, each.before) for each in back]


OLD, YOUNG, FOREIGN = "0123456789abcdef", "fedcba9876543210", "my-own-files"


def _with_garbage(folder: Path) -> Path:
    """A dataset beside an old folder and a young one that no version names, and one that no prepare made."""
    write_dataset(folder, ([40],))
    for name in (OLD, YOUNG, FOREIGN):
        file = folder / "data" / name / "train/part-0.parquet"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"x" * 100)
    two_days_ago = time.time() - 48 * 3600
    for name in (OLD, FOREIGN):
        for path in [folder / "data" / name, *(folder / "data" / name).rglob("*")]:
            os.utime(path, (two_days_ago, two_days_ago))
    return folder


def test_age_is_told_by_the_store_s_clock_whatever_this_machine_s_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _with_garbage(tmp_path)
    for hours in (-72, 72):
        elsewhere = time.time() + hours * 3600
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", lambda now=elsewhere: now)
            looked = collect_garbage(str(folder))
        assert (looked.garbage, looked.young) == ({f"data/{OLD}": 100}, (f"data/{YOUNG}",))
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []  # what told the time is gone again


def test_where_nothing_may_be_written_no_age_is_told_and_nothing_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _with_garbage(tmp_path)

    opens = Path.open

    def refuse(path: Path, mode: str = "r", **options: Any) -> Any:  # as a read-only mount does; permissions mean nothing to root
        if "x" in mode:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opens(path, mode, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(StorageError, match=r"cannot write to file:.*, whose clock shows the age of a folder: .*Permission denied; run"):
        collect_garbage(str(folder), delete=True)
    assert (folder / "data" / OLD / "train/part-0.parquet").stat().st_size == 100


def test_garbage_is_only_looked_at_until_it_is_to_be_deleted(tmp_path: Path) -> None:
    folder = _with_garbage(tmp_path)
    looked = collect_garbage(str(folder))
    assert (looked.garbage, looked.young, looked.deleted) == ({f"data/{OLD}": 100}, (f"data/{YOUNG}",), False)
    assert (folder / "data" / OLD).exists()
    assert collect_garbage(str(folder), delete=True).deleted
    assert sorted(path.name for path in (folder / "data").iterdir()) == sorted(["d1", YOUNG, FOREIGN])
    assert verify_version(str(folder)).files == 2
    assert collect_garbage(str(folder), delete=True, grace_hours=0).garbage == {f"data/{YOUNG}": 100}


def test_a_folder_that_only_an_older_version_or_one_file_of_a_younger_names_stays(tmp_path: Path) -> None:
    folder = _with_garbage(tmp_path)
    dataset = Dataset(str(folder))
    first = dataset.manifest(1)
    train = first.splits["train"]
    appended = train.files[0].model_copy(update={"path": f"data/{OLD}/train/part-0.parquet"})
    moved = train.model_copy(update={"files": (*train.files, appended)})
    dataset.commit(first.model_copy(update={"version": 2, "splits": first.splits | {"train": moved}}))
    assert collect_garbage(str(folder), delete=True, grace_hours=0).garbage == {f"data/{YOUNG}": 100}


def test_where_a_manifest_cannot_be_read_nothing_is_deleted(tmp_path: Path) -> None:
    folder = _with_garbage(tmp_path)
    (folder / "versions/2.json").write_text("{")
    with pytest.raises(DatasetError):
        collect_garbage(str(folder), delete=True)
    assert (folder / "data" / OLD).exists()
