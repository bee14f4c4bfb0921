"""``sparkring datasets gc``: find data folders that no committed version names, and delete them on request.

A killed prepare leaves such folders. A running one writes into a folder that no manifest names yet, so a folder counts as
garbage only when nothing in it has changed for a grace period, by the store's clock.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from sparkring.errors import SparkringError, StorageError
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.stores.base import Entry, Store

GRACE_HOURS = 24.0
_DATA_ID = re.compile(r"data/[0-9a-f]{16}")
"""Names of prepare's folders. Other folders below ``data/`` are never touched."""


@dataclass(frozen=True)
class GarbageResult:
    """Data folders that no version names."""

    url: str
    garbage: dict[str, int]
    """Bytes of each folder."""
    young: tuple[str, ...]
    """Folders that are kept, because something in them is younger than the grace period."""
    deleted: bool
    """Whether the garbage was deleted."""


def collect_garbage(url: str, *, delete: bool = False, grace_hours: float = GRACE_HOURS) -> GarbageResult:
    """Find data folders that no version names, and delete them if ``delete``.

    Args:
        url: The dataset, on any kind of store.
        delete: Delete them. Otherwise only list them; a temporary empty file shows the store's time.
        grace_hours: Keep a folder if anything in it is younger. It must be longer than a prepare takes.
    Raises:
        DatasetError: a manifest cannot be read, so its folders are unknown; nothing was deleted.
        StorageError: the store cannot be written to, so its time is unknown.
    """
    dataset = Dataset(url)
    folders = _data_folders(dataset.store)
    named = _named_folders(dataset)  # after the listing, so that a version committed meanwhile counts
    unnamed = {name: entries for name, entries in folders.items() if name not in named}
    before = _now(dataset.store) - grace_hours * 3600 if unnamed else 0.0
    young = tuple(name for name, entries in unnamed.items() if max(entry.changed for entry in entries) > before)
    garbage = {name: sum(entry.bytes for entry in entries) for name, entries in unnamed.items() if name not in young}
    if delete:
        for name in garbage:
            dataset.store.delete(name)
    return GarbageResult(url=dataset.url, garbage=garbage, young=young, deleted=delete)


def _now(store: Store) -> float:
    """Seconds since 1970 by the store's clock, which may differ from this machine's: the time of a file that is written there now."""
    folder = f".clock-{uuid.uuid4().hex}"
    try:
        store.put(f"{folder}/now", b"")
        try:
            return max(entry.changed for entry in store.tree(folder))
        finally:
            store.delete(folder)
    except SparkringError:
        raise
    except OSError as error:
        raise StorageError(f"cannot write to {store.url}, whose clock shows the age of a folder: {error}; "
                           "run it as a user who may write there.") from None


def _data_folders(store: Store) -> dict[str, list[Entry]]:
    """Prepare's folders by name, each with its entries; on stores with folders these include the folder's own entry."""
    folders: dict[str, list[Entry]] = {}
    for entry in store.tree("data"):
        name = "/".join(entry.name.split("/")[:2])
        if _DATA_ID.fullmatch(name) and (entry.name != name or entry.is_folder):
            folders.setdefault(name, []).append(entry)
    return dict(sorted(folders.items()))


def _named_folders(dataset: Dataset) -> set[str]:
    """Folders directly below ``data/`` that hold a file of some version."""
    manifests = [dataset.manifest(version) for version in dataset.versions()]
    files = {"/".join(file.path.split("/")[:2]) for manifest in manifests for split in manifest.splits.values() for file in split.files}
    return files | {f"data/{manifest.data_id}" for manifest in manifests}
