"""The manifest: the document that makes a dataset version visible and that holds everything a reader needs.

    <url>/versions/3.json                      the manifest of version 3, created by one atomic commit
    <url>/data/<data_id>/train/part-*.parquet  one Petastorm dataset per split, written before the commit

Figures per row group are plain lists of integers, so that a manifest of a million row groups opens in well under a
second. ``row_schema.py`` describes the rows, ``versions.py`` finds and commits manifests.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, ValidationError

from sparkring.conf.schema import Task
from sparkring.errors import DatasetError
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.data.dataset.row_schema import DataField, TensorSpec
from sparkring.pipelines.data.dataset.sizes import SizesField
from sparkring.pipelines.data.stores.documents import StrictModel

FORMAT = 1
UNSEALED = "0" * 64
"""Stands for the seal while the seal is computed."""
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


def _inside(path: str) -> str:
    if not re.fullmatch(r"(?!/)[^\\\x00-\x1f]+", path) or "://" in path or {"", ".", ".."} & set(path.split("/")):
        raise ValueError(f"{path!r} is not the plain relative path of a file inside the dataset")
    return path


class DataFile(StrictModel):
    """One Parquet file of a split."""

    path: Annotated[str, AfterValidator(_inside)]
    """Relative to the dataset's URL; a manifest cannot lead out of it."""
    bytes: int
    sha256: str
    row_groups: SizesField
    """Rows of each row group."""
    row_group_bytes: SizesField
    """Compressed bytes of each row group."""

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return sum(self.row_groups)


class Split(StrictModel):
    """The files of one split, and the totals of its rows."""

    files: tuple[DataFile, ...]
    rows: int
    positives: int | None = None
    """Rows with label 1, for the binary task."""
    rows_digest: str
    """Order-free hash of the row ids (``rowhash.py``); the rows read in an epoch must add up to it."""


def joined(splits: Iterable[Split]) -> Split:
    """The rows of several splits that have none in common; their files in this order."""
    parts = tuple(splits)
    positives = [part.positives for part in parts if part.positives is not None]
    digest = sum(int(part.rows_digest, 16) for part in parts) % (1 << 64)  # that of disjoint parts adds up
    return Split(files=tuple(file for part in parts for file in part.files), rows=sum(part.rows for part in parts),
                 positives=sum(positives) if len(positives) == len(parts) else None, rows_digest=f"{digest:016x}")


class RollingSplit(StrictModel):
    """The borders of a split by ages, at one version."""

    newest: datetime
    """Time of the newest row that was read so far, which the ages are counted back from."""
    validation_from: datetime
    """First moment of validation; earlier rows are for training."""
    test_from: datetime
    """First moment of test."""


class Manifest(StrictModel):
    """A committed dataset version."""

    format: Literal[1] = 1
    version: int
    parent: int | None
    data_id: str
    """Folder under ``data/``."""
    content_id: str
    """Hash over the schema and the hashes of all files: equal content has an equal id."""
    recipe_id: str
    """Hash over the prepare config and the source's bytes: an equal recipe need not run again."""
    created_at: str
    """UTC, ISO 8601."""
    code_version: str
    row_id: str
    row_id_of: tuple[str, ...] = ()
    """Columns of the query whose content made the row ids; empty if the query yielded the ids."""
    label: str
    """The predicted field."""
    weight: str | None = None
    """The field of the rows' weights in training; None: each row counts once."""
    task: Task = "binary"
    classes: int = 2
    """Number of classes of the label, or of token ids; 0 for a label that is a number."""
    fields: tuple[DataField, ...]
    tensors: tuple[TensorSpec, ...]
    splits: dict[str, Split]
    rolling: RollingSplit | None = None
    """Where the borders of a split by ages lie; None for any other split."""
    documents: tuple[DataFile, ...] = ()
    """Files that list the names of the documents that rows of tokens were cut from; an append skips listed documents."""
    preprocessing: Preprocessing
    folds: tuple[Preprocessing, ...] = ()
    """Of a version in folds: for each fold, what was fitted on the rows of all others; ``preprocessing`` is of all folds together."""
    recipe: dict[str, Any]
    """The prepare config of this version."""
    source: dict[str, Any]
    """Table name -> path, bytes, SHA-256 and rows read."""
    parent_sha256: Sha256 | None = None
    """SHA-256 of the parent's document at the time of this commit; None without a parent."""
    fold: int | None = Field(default=None, exclude=True)
    """Of a view (``folds.py``): the fold that validates."""
    stored: Preprocessing | None = Field(default=None, exclude=True)
    """Of a view: how the files hold features (``stored_columns.py``); None: as the network takes them."""
    seal: Sha256 = UNSEALED
    """SHA-256 of the document with ``UNSEALED`` in this place; set when the document is written. The field stands
    last."""

    @property
    def files(self) -> tuple[DataFile, ...]:
        """All files of the version."""
        return (*(file for split in self.splits.values() for file in split.files), *self.documents)

    def sealed(self) -> Manifest:
        """A copy with its seal set."""
        return self.model_copy(update={"seal": hashlib.sha256(_dumped(self.model_copy(update={"seal": UNSEALED}))).hexdigest()})

    def to_json(self) -> bytes:
        """The document as bytes, sealed."""
        return _dumped(self.sealed())


def _dumped(manifest: Manifest) -> bytes:
    return manifest.model_dump_json(indent=1).encode()


def seal_holds(document: bytes, seal: str) -> bool:
    """Whether ``seal`` was computed from these bytes of a manifest, which contain it."""
    before, _, after = document.rpartition(seal.encode())
    return hashlib.sha256(before + UNSEALED.encode() + after).hexdigest() == seal


def content_id(fields: tuple[DataField, ...], splits: Mapping[str, Split]) -> str:
    """Hash of a version's content: the field descriptions and, for each split, the file hashes in order."""
    document = {
        "fields": [field.model_dump(mode="json") for field in fields],
        "splits": {name: [file.sha256 for file in split.files] for name, split in sorted(splits.items())},
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def parse_manifest(data: bytes, *, origin: str) -> Manifest:
    """Check bytes against the schema; ``origin`` is named in the error."""
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "document"
        raise DatasetError(
            f"{origin} is not a manifest of format {FORMAT}: {where}: {first['msg']}; "
            "it was damaged, or written by another release of sparkring. Prepare the dataset again.") from None
