"""Row groups dealt to tasks: each once, in order, tasks of about equal bytes."""

from __future__ import annotations

import numpy as np
import pytest

from sparkring.pipelines.data.dataset.manifest import DataFile
from sparkring.spark_jobs.scoring.predict_split import LEAST_BYTES, MOST_BYTES, Group, split_groups


def file_of(name: str, *sizes: int) -> DataFile:
    return DataFile(path=name, bytes=sum(sizes), sha256="0" * 64, row_groups=(1,) * len(sizes), row_group_bytes=sizes)


@pytest.mark.parametrize("seed", range(20))
def test_each_row_group_is_dealt_once_and_no_task_is_much_larger_than_its_share(seed: int) -> None:
    random = np.random.default_rng(seed)
    files = [file_of(f"{number}.parquet", *map(int, random.integers(1, 8 * LEAST_BYTES, random.integers(0, 9)))) for number in range(6)]
    sizes = {Group(file.path, number): size for file in files for number, size in enumerate(file.row_group_bytes)}
    wanted = int(random.integers(1, 12))
    tasks = split_groups(files, tasks=wanted)
    assert [group for task in tasks for group in task] == list(sizes)
    share = max(sum(sizes.values()) / wanted, LEAST_BYTES)
    assert all(sum(sizes[group] for group in task[:-1]) <= share for task in tasks)
    assert len(tasks) <= 2 * wanted + 1


def test_little_is_one_task_and_much_is_many() -> None:
    assert len(split_groups([file_of("a", 9), file_of("b", 9)], tasks=64)) == 1
    assert len(split_groups([file_of("a", *[MOST_BYTES // 4] * 64)], tasks=2)) == 16
    assert split_groups([], tasks=2) == ()
