"""The manifest itself: whatever of it is edited is found, by its seal or by the version that followed it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.datasets import write_dataset
from sparkring.errors import DatasetChanged, DatasetError
from sparkring.pipelines.data.dataset.integrity import require_sealed, verify_files
from sparkring.pipelines.data.dataset.manifest import Manifest, parse_manifest, seal_holds
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.stored.datasets import verify_version

Place = tuple[str | int, ...]


@pytest.fixture
def document(tmp_path: Path) -> Path:
    """The manifest of a small version that was committed."""
    write_dataset(tmp_path, [[5, 3]], validation_rows=4)
    return tmp_path / "versions/1.json"


def _leaves(value: Any, place: Place = ()) -> Iterator[Place]:
    """Where the texts, numbers and truths of a document stand; an empty list or mapping counts as one."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not inner or not value:
        yield place
    for key, one in inner:
        yield from _leaves(one, (*place, key))


def _edited(document: dict[str, Any], place: Place) -> dict[str, Any]:
    """A copy that says something else at ``place``."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    holder: Any = copy
    for key in place[:-1]:
        holder = holder[key]
    match holder[place[-1]]:
        case bool(old):
            other: Any = not old
        case int(old) | float(old):
            other = old + 1
        case str(old):
            other = f"{old}1"
        case list() | dict() as old:
            other = {"one": 1} if isinstance(old, dict) else ["1"]
        case _:
            other = 1
    holder[place[-1]] = other
    return copy


def _found(folder: Path) -> bool:
    try:
        verify_version(str(folder))
    except DatasetError:
        return True
    return False


def test_an_edit_of_any_field_is_found(document: Path) -> None:
    said, folder = json.loads(document.read_bytes()), document.parent.parent
    document.write_text(json.dumps(said, indent=1), encoding="utf-8")
    assert not _found(folder)  # so that it is not the way of writing that is found below
    missed, missed_without_seal = [], set()
    for place in _leaves(said):
        document.write_text(json.dumps(_edited(said, place), indent=1), encoding="utf-8")
        if not _found(folder):
            missed.append(place)
        try:
            dataset = Dataset(str(folder))
            if not verify_files(dataset.store, dataset.manifest()):
                missed_without_seal.add(place[0])
        except DatasetError:
            pass
    assert missed == []
    assert {"preprocessing", "recipe_id", "created_at", "tensors", "label", "splits"} <= missed_without_seal  # the control


def test_bytes_that_mean_the_same_are_no_longer_the_document(document: Path) -> None:
    document.write_bytes(document.read_bytes().replace(b"\n", b"\n ", 1))
    with pytest.raises(DatasetChanged, match=r"version 1 of .* has changed: 1\.json was edited after it was committed"):
        verify_version(str(document.parent.parent))


def test_nobody_trains_on_a_manifest_that_was_edited(document: Path) -> None:
    dataset = Dataset(str(document.parent.parent))
    require_sealed(dataset, dataset.manifest())  # the control
    document.write_bytes(document.read_bytes().replace(b"\n", b"\n ", 1))
    with pytest.raises(DatasetChanged, match=r"version 1 of .* has changed: 1\.json was edited"):
        require_sealed(dataset, dataset.manifest())
    _without_seal(document)
    with pytest.raises(DatasetChanged, match=r"1\.json was edited"):
        require_sealed(dataset, dataset.manifest())


def test_the_seal_is_of_the_bytes_and_survives_the_way_through_them(document: Path) -> None:
    manifest = Dataset(str(document.parent.parent)).manifest()
    assert seal_holds(document.read_bytes(), manifest.seal)
    assert manifest.to_json() == document.read_bytes()
    assert manifest.sealed() == manifest == parse_manifest(manifest.to_json(), origin="here")
    assert manifest.model_copy(update={"label": "early"}).sealed().seal != manifest.seal


def _without_seal(document: Path) -> None:
    said = json.loads(document.read_bytes())
    del said["seal"]
    document.write_text(json.dumps(said), encoding="utf-8")


def _sealed_again(document: Path, **changes: Any) -> None:
    """Edited by somebody who knows how to compute the seal."""
    manifest = parse_manifest(document.read_bytes(), origin="here")
    document.write_bytes(manifest.model_copy(update=changes).to_json())


def test_a_manifest_without_a_seal_is_refused(document: Path) -> None:
    _without_seal(document)
    with pytest.raises(DatasetChanged, match=r"1\.json was edited"):
        verify_version(str(document.parent.parent))


def _second(dataset: Dataset) -> Manifest:
    return dataset.commit(dataset.manifest(1).model_copy(update={"version": 2, "parent": 1, "parent_sha256": dataset.manifest_sha256(1)}))


def test_a_version_that_was_sealed_again_is_held_by_the_one_that_followed_it(document: Path) -> None:
    dataset = Dataset(str(document.parent.parent))
    _second(dataset)
    for version in (1, 2):
        assert verify_version(dataset.url, version).version == version
    _sealed_again(document, created_at="2027-01-01T00:00:00Z")
    for version in (1, 2):
        with pytest.raises(DatasetChanged, match=r"1\.json is not the manifest that version 2 followed"):
            verify_version(dataset.url, version)
    document.unlink()
    assert verify_version(dataset.url).version == 2  # who deletes old versions may


def test_a_manifest_under_another_number_is_no_version(document: Path) -> None:
    dataset = Dataset(str(document.parent.parent))
    shutil.copyfile(document, document.with_name("2.json"))
    with pytest.raises(DatasetError, match=r"versions/2\.json says that it is version 1: it was copied or renamed"):
        dataset.manifest()
    assert dataset.manifest(1).version == 1


def test_rows_that_the_files_do_not_add_up_to_are_found_under_a_right_seal_too(document: Path) -> None:
    splits = parse_manifest(document.read_bytes(), origin="here").splits
    _sealed_again(document, splits=splits | {"train": splits["train"].model_copy(update={"rows": 9})})
    with pytest.raises(DatasetChanged, match=r"1\.json says 9 rows of train, its row groups add up to 8"):
        verify_version(str(document.parent.parent))
