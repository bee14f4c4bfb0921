"""The versions of a dataset at one URL: listing them, reading a manifest, and committing the next one.

    <url>/versions/3.json    the manifest of version 3, created by one atomic commit
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sparkring.errors import DatasetError, DatasetVersionNotFound
from sparkring.pipelines.data.dataset.folds import of_fold
from sparkring.pipelines.data.dataset.manifest import Manifest, parse_manifest
from sparkring.pipelines.data.stores.base import Store, numbered
from sparkring.pipelines.data.stores.open import open_store

VERSIONS, ADOPTED_VERSIONS = "versions", "_versions"
"""Folders of the manifests. Beside adopted Parquet files the folder's name must begin with _: other readers, such as
Petastorm's, fail on any other folder there."""

BRING_BACK = "bring it back to this address, where the model was trained on it, e.g. by a link"
"""What to do if a dataset has been moved since a model was trained on it, for the models know its address then."""


class Dataset:
    """The versions at one URL."""

    def __init__(self, url: str, *, one_writer: bool = False) -> None:
        self.store: Store = open_store(url, one_writer=one_writer)
        self.url = self.store.url

    def versions(self) -> list[int]:
        """Numbers of the committed versions, oldest first."""
        return self._home()[1]

    def manifest(self, version: int | None = None, *, fold: int | None = None, moved: str | None = None) -> Manifest:
        """Read the manifest of ``version``, or of the latest; see ``open``."""
        return self.open(version, fold=fold, moved=moved).manifest

    def open(self, version: int | None = None, *, fold: int | None = None, moved: str | None = None) -> DatasetVersion:
        """Read ``version``, or the latest one; pass the result on, so that its manifest is read only once.

        Args:
            version: Its number.
            fold: Of a version in folds: the one that validates; the manifest is then that view of it (``folds.py``).
            moved: Of a version that was here before: what the error advises if the dataset has been moved.
        Raises:
            DatasetVersionNotFound: there is none.
            DatasetError: the document is not a manifest of this format, or belongs to another version; or there is no such fold.
        """
        folder, existing = self._home()
        wanted = version if version is not None else (existing[-1] if existing else None)
        if wanted is None or wanted not in existing:
            raise DatasetVersionNotFound(self.url, wanted=version, existing=existing, moved=moved)
        origin = f"{self.url}/{folder}/{wanted}.json"
        document = self.store.read(f"{folder}/{wanted}.json")
        manifest = parse_manifest(document, origin=origin)
        if manifest.version != wanted:
            raise DatasetError(f"{origin} says that it is version {manifest.version}: it was copied or renamed; restore the right file.")
        manifest = manifest if fold is None else of_fold(manifest, fold, url=self.url)
        return DatasetVersion(self, manifest, hashlib.sha256(document).hexdigest())

    def document(self, version: int) -> bytes:
        """The stored bytes of a committed version's manifest."""
        return self.store.read(f"{self._home()[0]}/{version}.json")

    def manifest_sha256(self, version: int) -> str:
        """SHA-256 of a committed version's manifest."""
        return hashlib.sha256(self.document(version)).hexdigest()

    def commit(self, manifest: Manifest, *, adopted: bool = False) -> Manifest:
        """Make ``manifest`` visible as its version; CommitConflict if that number is taken.

        Args:
            manifest: The version to commit.
            adopted: Whether it describes files that other programs read too; its folder then has a name that they skip.
        Returns:
            The stored manifest, sealed.
        """
        folder = ADOPTED_VERSIONS if adopted else self._home()[0]
        self.store.put_if_absent(f"{folder}/{manifest.version}.json", manifest.to_json())
        return manifest.sealed()

    def _home(self) -> tuple[str, list[int]]:
        """The folder that holds the manifests, and their numbers, oldest first."""
        homes = ((folder, numbered(self.store, folder)) for folder in (VERSIONS, ADOPTED_VERSIONS))
        return next((home for home in homes if home[1]), (VERSIONS, []))


@dataclass(frozen=True)
class DatasetVersion:
    """A committed version whose manifest was read."""

    dataset: Dataset
    manifest: Manifest
    manifest_sha256: str
    """Hash of the manifest as it is stored."""
