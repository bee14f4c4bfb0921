"""What tasks of a cancelled job still write is deleted, too."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sparkring.pipelines.data.stores.local import LocalStore
from sparkring.spark_jobs.etl.writing.staging import cleared_on_error


def test_what_a_task_writes_after_its_job_has_failed_is_deleted(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    first_deleted = threading.Event()

    def late_task() -> None:
        while (tmp_path / "data/.train.writing").exists():
            pass
        first_deleted.set()
        store.put("data/.train.writing/_temporary/0/part-00001.parquet", b"late")

    store.put("data/.train.writing/part-00000.parquet", b"x")
    task = threading.Thread(target=late_task)
    task.start()
    with pytest.raises(KeyboardInterrupt), cleared_on_error(store, "data/.train.writing"):
        raise KeyboardInterrupt
    task.join()
    assert first_deleted.is_set()
    assert not (tmp_path / "data/.train.writing").exists()


def test_what_is_written_without_an_error_stays(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with cleared_on_error(store, "data"):
        store.put("data/part-00000.parquet", b"x")
    assert store.names("data") == ["part-00000.parquet"]
