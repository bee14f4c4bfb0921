"""A version on S3 or HDFS is whole or not there, wherever its writer is stopped; local disk: tests/unit/data/test_commit_crash.py."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from harness.datasets import write_dataset
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.dataset.versions import Dataset
from tests.support import seams
from tests.support.http_faults import HttpFaults
from tests.support.versions import Writer, damage

pytest_plugins = ["tests.support.places"]
over_http = pytest.mark.parametrize("kind_and_url", ["s3", pytest.param("hdfs", marks=pytest.mark.nightly)], indirect=True)


class ManifestFirst(Writer):
    """The control: the document is visible before the files are."""

    def commit(self, url: str) -> Manifest:
        dataset, folder = Dataset(url), f"data/{uuid.uuid4().hex}"
        promised = {name: split.model_copy(update={"files": tuple(
            file.model_copy(update={"path": f"{folder}/{name}/part-{number:05d}.parquet"}) for number, file in enumerate(split.files))})
            for name, split in self.template.manifest().splits.items()}
        manifest = self.manifest(dataset, "naive", promised)
        dataset.commit(manifest)
        self.write(dataset.store, folder)
        return manifest


def requests_of(writer: Writer, url: str) -> list[str]:
    """The changing requests of a commit."""
    with HttpFaults() as seen:
        writer.commit(url)
    return seen.acts


def stopped_everywhere(writer: Writer, url: str) -> Iterator[str]:
    """Stop a commit before and after each of its changing requests; yields what was wrong after which."""
    dataset = Dataset(url)
    for number, method in enumerate(requests_of(writer, url)):
        for done in (False, True):
            before = dataset.versions()
            with HttpFaults(at=number, done=done) as faults, suppress(OSError):
                writer.commit(url)
            assert faults.struck
            after = dataset.versions()
            if after not in (before, [*before, before[-1] + 1]):
                yield f"request {number}, {method}: versions were {before} and are {after}"
            for version in after[len(before) - 1:]:
                if what := damage(dataset, version):
                    yield f"request {number}, {method}: version {version}: {what}"


@pytest.fixture
def remote(place: str, kind_and_url: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """A place that is reached over HTTP; its client gives up at once, as one does that was killed."""
    if kind_and_url[0] == "s3":
        monkeypatch.setattr(seams.S3_ATTEMPTS, 1)
    return place


@over_http
def test_a_commit_stopped_at_any_request_leaves_whole_versions_only(remote: str, tmp_path: Path) -> None:
    writer = Writer(write_dataset(tmp_path / "made", [[5, 3]], validation_rows=4), staging=tmp_path / "staging")
    assert len(requests_of(writer, remote)) >= len(["train", "its metadata", "validation", "its metadata", "manifest"])
    assert list(stopped_everywhere(writer, remote)) == []
    assert writer.commit(remote).version == Dataset(remote).versions()[-1]


@over_http
def test_a_naive_commit_is_caught(remote: str, tmp_path: Path) -> None:
    template = write_dataset(tmp_path / "made", [[9]], validation_rows=4)
    Writer(template, staging=tmp_path / "staging").commit(remote)
    assert next(stopped_everywhere(ManifestFirst(template, staging=tmp_path / "staging"), remote), None)
