"""``sparkring datasets gc``: find, and when told to delete, data folders that no committed version names.

Such folders are what a prepare left that was killed. One that still runs writes into a folder that no manifest names yet,
so a folder counts as garbage only when nothing in it has changed for a grace period.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from sparkring.errors import ConfigError
from sparkring.pipelines.data.local_store import LocalStore
from sparkring.pipelines.data.manifest import Dataset

GRACE_HOURS = 24.0
_DATA_ID = re.compile(r"[0-9a-f]{16}")
"""What prepare calls its folders. Others below ``data/`` are somebody else's and never looked at."""


@dataclass(frozen=True)
class GarbageResult:
    """Data folders that no version names."""

    url: str
    garbage: dict[str, int]
    """Folder -> bytes."""
    young: tuple[str, ...]
    """Folders left alone, since something in them is younger than the grace period."""
    deleted: bool
    """Whether the garbage is gone now."""


def collect_garbage(url: str, *, delete: bool = False, grace_hours: float = GRACE_HOURS) -> GarbageResult:
    """Find data folders that no version names, and delete them if told to.

    Args:
        url: The dataset, on a local or mounted folder.
        delete: False: only look.
        grace_hours: Leave a folder alone if anything in it is younger. Longer than a prepare takes.
    Raises:
        ConfigError: the dataset is on another kind of store.
        DatasetError: a manifest cannot be read, so what it names is not known; nothing was deleted.
    """
    dataset = Dataset(url)
    store = dataset.store
    if not isinstance(store, LocalStore):
        raise ConfigError(f"{store.url}: gc serves local and mounted folders only; there, delete data/<id> folders that no manifest names.")
    folders = [path for path in sorted(Path(store.path("data")).glob("*")) if path.is_dir() and _DATA_ID.fullmatch(path.name)]
    named = _named_folders(dataset)  # after the listing: what was committed meanwhile is named
    before = time.time() - grace_hours * 3600
    unnamed = [path for path in folders if f"data/{path.name}" not in named]
    young = tuple(f"data/{path.name}" for path in unnamed if _newest(path) > before)
    garbage = {f"data/{path.name}": _bytes(path) for path in unnamed if f"data/{path.name}" not in young}
    if delete:
        for name in garbage:
            store.delete(name)
    return GarbageResult(url=store.url, garbage=garbage, young=young, deleted=delete)


def _named_folders(dataset: Dataset) -> set[str]:
    """Folders directly below ``data/`` that hold a file of some version."""
    manifests = [dataset.manifest(version) for version in dataset.versions()]
    files = {"/".join(file.path.split("/")[:2]) for manifest in manifests for split in manifest.splits.values() for file in split.files}
    return files | {f"data/{manifest.data_id}" for manifest in manifests}


def _newest(folder: Path) -> float:
    """When anything in it last changed, seconds since 1970."""
    return max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))


def _bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
