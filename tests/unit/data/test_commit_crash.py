"""A version is there whole or not at all, wherever its writer is stopped: tried at every act on the disk that a commit consists of.

The writer is prepare's own from the moment that Spark has written: collecting the files, reading them back, Petastorm's
metadata, the manifest, the clean-up. Spark's part is played by plain copies, which are stopped half-way, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest

from harness.datasets import write_dataset
from sparkring.errors import CommitConflict
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from tests.support.faults import Faults
from tests.support.versions import Writer, damage

KINDS = {"mkdir", "create", "write", "fsync", "link", "unlink", "rmdir", "replace"}
LAYOUT = [[40, 8], [17], [0, 30], [23], [5], [1], [12, 12], [9]]


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    return Writer(write_dataset(tmp_path_factory.mktemp("template"), LAYOUT, validation_rows=31))


@pytest.fixture
def dataset(writer: Writer, tmp_path: Path) -> Dataset:
    """A dataset with one good version."""
    writer.commit(str(tmp_path))
    return Dataset(str(tmp_path))


def data_folders(dataset: Dataset) -> set[str]:
    return {folder.name for folder in Path(dataset.store.path("data")).iterdir()}


def count_acts(commit: Callable[[str], Manifest], url: str) -> list[str]:
    with Faults() as seen:
        commit(url)
    return seen.acts


def stopped_everywhere(commit: Callable[[str], Manifest], dataset: Dataset, *, how: Literal["error", "dead"]) -> Iterator[tuple[str, str]]:
    """Stop a commit at each of its acts in turn; yields (where, what is wrong) for each stop that left something wrong."""
    for number, name in enumerate(count_acts(commit, dataset.url)):
        before = dataset.versions()
        with Faults(at=number, how=how) as faults, suppress(OSError):
            commit(dataset.url)
        after = dataset.versions()
        where = f"act {number}, {name}"
        assert faults.struck, where
        if after not in (before, [*before, before[-1] + 1]):
            yield where, f"versions were {before} and are {after}"
        for version in after[len(before) - 1:]:
            wrong = damage(dataset, version)
            if wrong:
                yield where, f"version {version}: {wrong}"


@pytest.mark.parametrize("how", ["error", "dead"])
def test_a_commit_stopped_at_any_act_leaves_whole_versions_only(writer: Writer, dataset: Dataset, how: Literal["error", "dead"]) -> None:
    acts = count_acts(writer.commit, dataset.url)
    assert len(acts) >= 100
    assert set(acts) == KINDS
    assert list(stopped_everywhere(writer.commit, dataset, how=how)) == []
    known = {dataset.manifest(version).data_id for version in dataset.versions()}
    left = data_folders(dataset) - known
    if how == "error":  # who lives cleans up, but for a commit that failed: on other stores it may still have been done, so the files stay
        assert len(left) == len(["create", "write", "fsync", "link"])
    else:
        assert len(left) > len(acts) / 2
    assert writer.commit(dataset.url).version == dataset.versions()[-1]
    assert damage(dataset, dataset.versions()[-1]) is None


@pytest.mark.timeout(120)
def test_a_process_that_ends_at_any_act_leaves_whole_versions_only(writer: Writer, dataset: Dataset) -> None:
    ended = subprocess.run([sys.executable, "-m", "tests.support.crash_main", writer.template.url, dataset.url],
                           capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["stopped"] >= 100
    assert found["wrong"] == []
    assert found["versions"] == dataset.versions()
    assert damage(dataset, dataset.versions()[-1]) is None


def manifest_first(writer: Writer, url: str) -> Manifest:
    """The order that must not be: the document is visible before its files are there."""
    dataset = Dataset(url)
    made = writer.manifest(dataset, "naive", writer.template.manifest().splits)
    folder = f"data/{uuid.uuid4().hex}"
    splits = {name: split.model_copy(update={"files": tuple(
        file.model_copy(update={"path": f"{folder}/{name}/part-{number:05d}.parquet"}) for number, file in enumerate(split.files))})
        for name, split in made.splits.items()}
    made = made.model_copy(update={"splits": splits})
    dataset.commit(made)
    writer.write(dataset.store, folder)
    return made


def document_in_place(writer: Writer, url: str) -> Manifest:
    """The write that must not be: straight to the final name."""
    dataset = Dataset(url)
    made = writer.manifest(dataset, "naive", writer.write(dataset.store, f"data/{uuid.uuid4().hex}"))
    with open(dataset.store.path(f"versions/{made.version}.json"), "wb") as file:  # noqa: PTH123 - what a naive writer does
        file.write(made.to_json())
    return made


@pytest.mark.parametrize("naive", [manifest_first, document_in_place])
def test_a_naive_commit_is_caught(writer: Writer, dataset: Dataset, naive: Callable[[Writer, str], Manifest]) -> None:
    wrong = list(stopped_everywhere(lambda url: naive(writer, url), dataset, how="dead"))
    assert wrong
    assert all("version" in what for _, what in wrong)


def test_all_that_a_commit_names_is_on_the_disk_before_it_is_visible(
        writer: Writer, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: set[tuple[int, int]] = set()
    at_commit: set[tuple[int, int]] = set()
    sync, link = os.fsync, os.link

    def identity(status: os.stat_result) -> tuple[int, int]:
        return status.st_dev, status.st_ino

    def noted_sync(handle: int) -> None:
        flushed.add(identity(os.fstat(handle)))
        sync(handle)

    def noted_link(*names: Path) -> None:
        at_commit.update(flushed)
        link(*names)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "link", noted_link)
    manifest = writer.commit(dataset.url)
    root = Path(dataset.store.path(""))
    files = [root / file.path for split in manifest.splits.values() for file in split.files]
    needed = {*files, *(folder for file in files for folder in file.parents if folder.is_relative_to(root))}
    assert [path for path in needed if identity(path.stat()) not in at_commit] == []


def test_of_two_writers_one_commits_and_the_other_leaves_nothing(writer: Writer, dataset: Dataset) -> None:
    other = Writer(write_dataset(Path(dataset.store.path("")).parent / "other", LAYOUT, validation_rows=31, seed=1))
    together = threading.Barrier(2)
    done: dict[str, Manifest | CommitConflict] = {}

    class Meeting(Writer):
        def manifest(self, *made: object) -> Manifest:
            manifest = super().manifest(*made)  # type: ignore[arg-type]
            together.wait(20)  # both have chosen the same number
            return manifest

    def run(name: str, one: Writer) -> None:
        try:
            done[name] = Meeting(one.template).commit(dataset.url)
        except CommitConflict as error:
            done[name] = error

    threads = [threading.Thread(target=run, args=(name, one)) for name, one in (("first", writer), ("second", other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    won = [result for result in done.values() if isinstance(result, Manifest)]
    lost = [result for result in done.values() if isinstance(result, CommitConflict)]
    assert (len(won), len(lost), dataset.versions()) == (1, 1, [1, 2])
    assert dataset.manifest(2) == won[0]
    assert damage(dataset, 2) is None
    assert data_folders(dataset) == {dataset.manifest(version).data_id for version in (1, 2)}
