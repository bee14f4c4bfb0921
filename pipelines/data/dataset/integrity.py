"""Whether the files of a dataset version are the committed ones: three checks, from quick to complete.

    check_footers   each file exists, and its size, schema and row groups are the manifest's; made before the first step of
                    a run (thousands of files a second; no data page is read)
    verify_files    the SHA-256 of every byte, and files that no manifest names; ``sparkring datasets verify``
    verify_document the manifest itself: its seal, and the hashes by which versions refer to their parents

All return one ``Mismatch`` per wrong file, and change nothing. Only ``verify_files`` finds two exchanged files with
equal figures. A flipped bit in a data page is also found when the page is read (loading/page_checksums.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparkring.errors import DatasetChanged, DatasetError, StorageError, in_one_line
from sparkring.pipelines.data.dataset.manifest import DataFile, Manifest, content_id, seal_holds
from sparkring.pipelines.data.dataset.row_schema import DataField
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.retry import retry_read

THREADS = 8
"""Enough to hide the latency of a remote store; a local one keeps one or two cores busy anyway."""
CHUNK_BYTES = 4 << 20
UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError)
"""Errors that Arrow raises on a damaged Parquet file; a column's name may no longer be text."""
_WIDER = {"uint8": pa.int16(), "uint16": pa.int32(), "uint32": pa.int64(), "float16": pa.float32()}
"""Types that Spark lacks, and the types that it stores them as."""


@dataclass(frozen=True)
class Mismatch:
    """A file that differs from the committed one."""

    path: str
    """Relative to the dataset's URL."""
    text: str
    """Found and expected, e.g. ``has 812 bytes, the manifest says 1024``."""

    def __str__(self) -> str:
        return f"{self.path} {self.text}"


def check_footers(store: Store, manifest: Manifest, files: Sequence[DataFile], *, threads: int = THREADS) -> list[Mismatch]:
    """Compare the sizes and footers of files with the manifest.

    Args:
        store: The dataset's folder.
        manifest: The version that names the files.
        files: The files to check, e.g. a rank's share.
        threads: Files checked at once.
    Returns:
        A mismatch for each file that is missing, exchanged, shorter or longer, or has another schema or other row groups; in the
        order of ``files``.
    """
    check = partial(_check_footer, store, _Schema(manifest.fields), _owners(manifest))
    with ThreadPoolExecutor(threads, thread_name_prefix="sparkring-footers") as pool:
        return [mismatch for mismatch in pool.map(check, files) if mismatch]


def verify_files(store: Store, manifest: Manifest, *, threads: int = THREADS,
                 on_file: Callable[[DataFile], None] = lambda _: None) -> list[Mismatch]:
    """Hash every byte of a version's files and look for files that it does not name.

    Args:
        store: The dataset's folder.
        manifest: The version to verify.
        threads: Files read at once.
        on_file: Called after each file.
    Returns:
        A mismatch for the manifest if its figures contradict each other, for each file that is missing or has other bytes, and for
        each Parquet file beside them that the manifest does not name.
    """
    files = manifest.files
    check = partial(_check_bytes, store, {file.sha256: file.path for file in files})
    mismatches = []
    with ThreadPoolExecutor(threads, thread_name_prefix="sparkring-verify") as pool:
        for file, mismatch in zip(files, pool.map(check, files), strict=True):
            on_file(file)
            if mismatch:
                mismatches.append(mismatch)
    return [*_check_manifest(manifest), *mismatches, *_extra_files(store, files)]


def require_sealed(dataset: Dataset, manifest: Manifest) -> None:
    """Check by its seal that a version's manifest is the committed one.

    Raises:
        DatasetChanged: it was edited.
    """
    mismatches = _check_seal(dataset, manifest)
    if mismatches:
        raise DatasetChanged(dataset.url, version=manifest.version, findings=list(map(str, mismatches)))


def verify_document(dataset: Dataset, version: int) -> list[Mismatch]:
    """Check that a version's manifest is the committed document.

    Args:
        dataset: The dataset.
        version: The version's number.
    Returns:
        A mismatch for the manifest if it was edited, or if a later version followed another document of this number;
        and one for its parent, if this version followed another document of the parent's number.
    """
    mismatches = _check_seal(dataset, dataset.manifest(version))
    for child in (version, *(number for number in dataset.versions() if number > version)):
        followed = _followed(dataset, child)
        if followed is not None and version in (child, followed[0]) and dataset.manifest_sha256(followed[0]) != followed[1]:
            mismatches.append(Mismatch(f"{followed[0]}.json", f"is not the manifest that version {child} followed"))
    return mismatches


def _check_seal(dataset: Dataset, manifest: Manifest) -> list[Mismatch]:
    version = manifest.version
    if seal_holds(dataset.document(version), manifest.seal):
        return []
    return [Mismatch(f"{version}.json", "was edited after it was committed: its content does not give the seal in it")]


def _followed(dataset: Dataset, version: int) -> tuple[int, str] | None:
    """A version's parent, and the SHA-256 of the parent's manifest at the commit; None without a readable parent."""
    try:
        manifest = dataset.manifest(version)
    except DatasetError:  # faults of another version are reported when that one is verified
        return None
    if manifest.parent is None or manifest.parent_sha256 is None or manifest.parent not in dataset.versions():
        return None
    return manifest.parent, manifest.parent_sha256


def schema_drift(fields: Iterable[DataField], found: pa.Schema) -> list[str]:
    """Differences between the manifest's columns and a file's, one text per column; the order of columns is free.

    Args:
        fields: The manifest's columns.
        found: The file's schema.
    Returns:
        E.g. ``["colour (int32) is gone", "hue (string) is new", "late is int64 instead of int8"]``.
    """
    wanted, texts = {field.name: field for field in fields}, []
    present = {field.name: field for field in found}
    for name, field in wanted.items():
        if name not in present:
            texts.append(f"{name} ({arrow_types(field)[0]}) is gone")
        elif present[name].type not in arrow_types(field):
            texts.append(f"{name} is {present[name].type} instead of {arrow_types(field)[0]}")
        elif present[name].nullable and not field.nullable:
            texts.append(f"{name} may be null, which the manifest rules out")
    texts += [f"{name} ({field.type}) is new" for name, field in present.items() if name not in wanted]
    return texts


def arrow_types(field: DataField) -> tuple[pa.DataType, ...]:
    """The types that the field's Parquet column may have: bytes for an encoded field, else its own type or a wider
    one of Spark's.
    """
    if field.codec != "scalar":
        return (pa.binary(), pa.large_binary())
    own = pa.from_numpy_dtype(np.dtype(field.dtype))
    return (own, _WIDER[field.dtype]) if field.dtype in _WIDER else (own,)


def row_group_bytes(footer: pq.FileMetaData) -> tuple[int, ...]:
    """Compressed bytes of each row group, as the manifest holds them."""
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    return tuple(sum(group.column(column).total_compressed_size for column in range(group.num_columns)) for group in groups)


class _Schema:
    """Compares the schemas of footers with the manifest's; an equal schema is compared only once."""

    def __init__(self, fields: tuple[DataField, ...]) -> None:
        self._fields = fields
        self._right: pq.ParquetSchema | None = None

    def drift(self, footer: pq.FileMetaData) -> list[str]:
        """As ``schema_drift``, of a footer."""
        found = footer.schema
        if self._right is not None and found.equals(self._right):
            return []
        drift = schema_drift(self._fields, found.to_arrow_schema())
        if not drift:
            self._right = found
        return drift


_Facts = tuple[int, Sequence[int], Sequence[int]]
"""Bytes of a file, rows and compressed bytes of its row groups: they identify a file without reading it."""


def _owners(manifest: Manifest) -> dict[_Facts, str]:
    return {_facts(file): file.path for split in manifest.splits.values() for file in split.files}


def _facts(file: DataFile) -> _Facts:
    return file.bytes, tuple(file.row_groups), tuple(file.row_group_bytes)


def _check_footer(store: Store, schema: _Schema, owners: dict[_Facts, str], file: DataFile) -> Mismatch | None:
    try:
        drift, found = retry_read(partial(_drift_and_facts, store, schema, file.path))
    except FileNotFoundError:
        return Mismatch(file.path, "is missing")
    except StorageError:
        raise
    except UNREADABLE as error:
        what = _size_text(store.size(file.path) or 0, file.bytes) or f"has no readable footer ({_first_line(error)})"
        return Mismatch(file.path, what)
    if drift:
        return Mismatch(file.path, f"has another schema than the manifest: {in_one_line(drift)}")
    if found == _facts(file):
        return None
    return Mismatch(file.path, _facts_text(found, file, owners))


def _drift_and_facts(store: Store, schema: _Schema, path: str) -> tuple[list[str], _Facts]:
    with store.open_input(path) as opened:
        footer = pq.ParquetFile(opened).metadata
        group_rows = tuple(footer.row_group(group).num_rows for group in range(footer.num_row_groups))
        return schema.drift(footer), (opened.size(), group_rows, row_group_bytes(footer))


def _facts_text(found: _Facts, file: DataFile, owners: dict[_Facts, str]) -> str:
    if found in owners:
        return f"holds what the manifest calls {owners[found]}: the two were exchanged, or one was copied over the other"
    size, groups, group_bytes = found
    if len(groups) != len(file.row_groups):
        return f"has {len(groups)} row groups of {sum(groups)} rows, the manifest says {len(file.row_groups)} of {file.rows}"
    for number, (rows, wanted) in enumerate(zip(groups, file.row_groups, strict=True)):
        if rows != wanted:
            return f"has {rows} rows in row group {number}, the manifest says {wanted}"
    size_text = _size_text(size, file.bytes)
    if size_text:
        return size_text
    number = next(place for place, (one, other) in enumerate(zip(group_bytes, file.row_group_bytes, strict=True)) if one != other)
    return f"has {group_bytes[number]} bytes in row group {number}, the manifest says {file.row_group_bytes[number]}"


def _check_bytes(store: Store, owners: dict[str, str], file: DataFile) -> Mismatch | None:
    try:
        size, found = retry_read(partial(_size_and_sha256, store, file.path))
    except FileNotFoundError:
        return Mismatch(file.path, "is missing")
    except StorageError:
        raise
    except UNREADABLE as error:
        return Mismatch(file.path, f"cannot be read ({_first_line(error)})")
    if found == file.sha256:
        return None
    if found in owners:
        return Mismatch(file.path, f"holds the bytes of {owners[found]}: the two were exchanged, or one was copied over the other")
    return Mismatch(file.path, _size_text(size, file.bytes) or f"has SHA-256 {found}, the manifest says {file.sha256}")


def _size_and_sha256(store: Store, path: str) -> tuple[int, str]:
    with store.open_input(path) as opened:
        digest = hashlib.sha256()
        while chunk := opened.read(CHUNK_BYTES):
            digest.update(chunk)
        return opened.size(), digest.hexdigest()


def _check_manifest(manifest: Manifest) -> list[Mismatch]:
    name, found = f"{manifest.version}.json", content_id(manifest.fields, manifest.splits)
    mismatches = [Mismatch(name, f"says {split.rows} rows of {key}, its row groups add up to {sum(file.rows for file in split.files)}")
                for key, split in manifest.splits.items() if split.rows != sum(file.rows for file in split.files)]
    if found != manifest.content_id:
        mismatches.append(Mismatch(name, f"has content id {manifest.content_id}, its own fields and hashes give {found}"))
    return mismatches


def _extra_files(store: Store, files: Iterable[DataFile]) -> list[Mismatch]:
    """Parquet files that lie beside the version's own. All readers skip names that begin with ``_`` or ``.``."""
    named = {file.path for file in files}
    folders = sorted({str(PurePosixPath(path).parent) for path in named})
    found = (str(PurePosixPath(folder) / name) for folder in folders for name in store.names("" if folder == "." else folder)
             if not name.startswith(("_", ".")))
    return [Mismatch(path, "is extra: the manifest does not name it") for path in found if path.endswith(".parquet") and path not in named]


def _size_text(found: int, wanted: int) -> str:
    if found == wanted:
        return ""
    how = "is truncated: it has" if found < wanted else "is longer than it was: it has"
    return f"{how} {found} bytes, the manifest says {wanted}"


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
