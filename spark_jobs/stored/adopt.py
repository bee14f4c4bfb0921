"""``sparkring adopt URL``: make an existing Petastorm or plain Parquet dataset a dataset version, where it lies.

Writes one manifest, ``_versions/1.json``; it moves, rewrites and deletes nothing, so other readers of the files still work.
A Petastorm schema is read from the pickle in ``_common_metadata`` without unpickling anything that it names
(``pipelines/data/dataset/unischema_pickle.py``). Every file is hashed and the row ids are read once; needs neither Spark nor Petastorm.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparkring.errors import ConfigError, DatasetError, in_one_line
from sparkring.pipelines.data.dataset.foreign_schema import (
    fields_of_columns,
    fields_of_unischema,
    preprocessing_of,
    require_classes,
    standardisation_of,
    task_of,
    tensors_of,
)
from sparkring.pipelines.data.dataset.integrity import CHUNK_BYTES, UNREADABLE, row_group_bytes, schema_drift
from sparkring.pipelines.data.dataset.manifest import DataFile, Manifest, Split, content_id
from sparkring.pipelines.data.dataset.row_schema import ARRAY_CODECS, LABEL, DataField, TensorSpec
from sparkring.pipelines.data.dataset.unischema_pickle import COMMON_METADATA, UNISCHEMA_KEY, read_unischema
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.codecs import decode
from sparkring.pipelines.data.loading.page_checksums import read_verified
from sparkring.pipelines.data.order.rowhash import add, rows_digest, to_hex
from sparkring.pipelines.data.stores.base import Store
from sparkring.spark_jobs.scoring.columns import require_free, split_columns
from sparkring.spark_jobs.spark.progress import SILENT, Bar, Progress
from sparkring.version import __version__

_WIDER_THAN_FLOAT32 = ("float64", "int32", "int64", "uint32")
Array = np.ndarray[Any, np.dtype[np.generic]]


@dataclass(frozen=True)
class AdoptResult:
    """The version that describes the files."""

    url: str
    version: int
    petastorm: bool
    """Whether the schema is Petastorm's, or that of plain Parquet."""
    rows: dict[str, int]
    """Rows of each split."""
    task: str
    tensors: tuple[str, ...]
    left_out: tuple[str, ...]
    """Columns without a tensor: arrays whose size differs from row to row, and images whose size the schema leaves open."""
    rounded: tuple[str, ...]
    """Columns whose numbers a batch holds as float32, which may round them; the files keep the exact numbers."""


def adopt(url: str, *, row_id: str, label: str, splits: Mapping[str, str] | None = None, progress: Progress = SILENT) -> AdoptResult:
    """Commit version 1 of an existing dataset.

    Args:
        url: The folder that holds the Parquet files or the splits' folders.
        row_id: The column of integers that is different in every row.
        label: The column to predict.
        splits: Folder inside ``url`` of each split; default one split, ``train``, of the files directly in ``url``,
            which ``.`` names too.
        progress: Where to report.
    Raises:
        HostileDataset: the metadata would run code when unpickled; none was run.
        DatasetError: the files cannot be adopted; nothing was written.
        CommitConflict: another process committed the version meanwhile.
    """
    dataset = Dataset(url)
    if dataset.versions():
        raise ConfigError(f"{dataset.url} has committed versions already ({', '.join(map(str, dataset.versions()))}); "
                          "there is nothing to adopt.")
    folders = {split: _inside(folder) for split, folder in (splits or {"train": ""}).items()}
    if "train" not in folders:
        raise ConfigError(f"splits {', '.join(folders)} lack one called train; name it, e.g. --split train=FOLDER.")
    names = {split: _parquet_files(dataset.store, folder) for split, folder in folders.items()}
    with progress.stage("adopt", total=sum(map(len, names.values()))) as bar:
        return _adopt(dataset, folders, names, row_id, label, bar)


def _adopt(dataset: Dataset, folders: Mapping[str, str], names: Mapping[str, list[str]], row_id: str, label: str, bar: Bar) -> AdoptResult:
    store = dataset.store
    columns = _footer(store, names["train"][0]).schema.to_arrow_schema()
    fields, petastorm = _fields(store, folders["train"], columns, origin=dataset.url)
    fields = _with_sizes(fields, store, [name for files in names.values() for name in files])
    tensors_of(fields, row_id=row_id, label=label, task="binary")  # refuses unsuitable columns before every file is read
    made: dict[str, Split] = {}
    ids: list[Array] = []
    labels: dict[str, Array] = {}
    for split, files in names.items():
        described: list[DataFile] = []
        for name in files:
            bar.update(sum(len(each.files) for each in made.values()) + len(described), text=name)
            described.append(_describe(store, name, fields))
        split_ids = _column(store, files, row_id)
        labels[split] = _column(store, files, label)
        ids.append(split_ids)
        made[split] = Split(files=tuple(described), rows=len(split_ids), rows_digest=to_hex(add([rows_digest(split_ids.astype(np.int64))])))
    _require_unique(np.concatenate(ids), row_id)
    task, classes = task_of(label, labels["train"])
    require_free((row_id, label), split_columns(task))
    standard = standardisation_of(label, labels) if task == "regression" else None
    for split, values in labels.items() if standard is None else ():
        require_classes(label, values, split=split, classes=classes)
    if task == "binary":
        made = {split: each.model_copy(update={"positives": int((labels[split] == 1).sum())}) for split, each in made.items()}
    tensors = tensors_of(fields, row_id=row_id, label=label, task=task, standard=standard)
    recipe = {"adopted": {"row_id": row_id, "label": label, "splits": dict(folders), "petastorm": petastorm}}
    manifest = Manifest(
        version=1, parent=None, data_id="adopted", content_id=content_id(fields, made),
        recipe_id=hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest(),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"), code_version=__version__, row_id=row_id, label=label, task=task,
        classes=classes, fields=fields, tensors=tensors, splits=made, recipe=recipe, source={},
        preprocessing=preprocessing_of(fields, tensors, task=task, classes=classes, rows=made["train"].rows))
    dataset.commit(manifest, adopted=True)
    used = {name for spec in tensors for name in spec.fields}
    return AdoptResult(url=dataset.url, version=1, petastorm=petastorm, rows={split: each.rows for split, each in made.items()}, task=task,
                       tensors=tuple(spec.name for spec in tensors), left_out=tuple(each.name for each in fields if each.name not in used),
                       rounded=tuple(_rounded(fields, tensors)))


def _inside(folder: str) -> str:
    """The one spelling of a folder inside the dataset's: ``./a/`` is ``a``, and ``.`` is the dataset's own, the empty name."""
    inside = posixpath.normpath(folder.strip("/"))
    return "" if inside == "." else inside


def _parquet_files(store: Store, folder: str) -> list[str]:
    """Names of the Parquet files directly in ``folder``; a name that begins with ``_`` or ``.`` is metadata."""
    found = [f"{folder}/{name}".lstrip("/") for name in store.names(folder)
             if name.endswith(".parquet") and not name.startswith(("_", "."))]
    if not found:
        raise DatasetError(f"{store.path(folder)} holds no .parquet files; name the splits' folders with --split train=FOLDER --split "
                           "validation=FOLDER. A table in partition folders is prepared instead, as a source of format parquet.")
    return found


def _fields(store: Store, folder: str, columns: pa.Schema, *, origin: str) -> tuple[tuple[DataField, ...], bool]:
    """The fields of the files, and whether Petastorm described them."""
    inside = f"{folder}/{COMMON_METADATA}".lstrip("/")
    if store.size(inside) is None:
        return fields_of_columns(columns, origin=origin), False
    pickled = (_footer(store, inside).metadata or {}).get(UNISCHEMA_KEY)
    if pickled is None:
        return fields_of_columns(columns, origin=origin), False
    return fields_of_unischema(read_unischema(pickled, origin=store.path(inside)), columns, origin=origin), True


def _with_sizes(fields: tuple[DataField, ...], store: Store, files: Sequence[str]) -> tuple[DataField, ...]:
    """The fields, with the shape of each array whose schema leaves its size open although all rows are alike."""
    return tuple(field.model_copy(update={"shape": shape}) if (shape := _common_shape(field, store, files)) else field for field in fields)


def _common_shape(field: DataField, store: Store, files: Sequence[str]) -> tuple[int, ...] | None:
    """The shape of all rows of an array of open size; None if they differ or the field is no such array."""
    if None not in field.shape or field.codec not in ARRAY_CODECS:
        return None
    found: set[tuple[int, ...]] = set()
    for file in files:
        with store.open_input(file) as opened:
            for group in range(pq.ParquetFile(opened).num_row_groups):
                rows = read_verified(opened, path=store.path(file), columns=[field.name], groups=[group])
                found.update(decode(cell.as_py(), field).shape for cell in rows.column(0) if cell.is_valid)
                if len(found) > 1:
                    return None
    return found.pop() if found else None


def _rounded(fields: Sequence[DataField], tensors: Sequence[TensorSpec]) -> Iterator[str]:
    """Columns of doubles, or of integers of 32 bits and more, in a tensor of float32."""
    dtypes = {field.name: field.dtype for field in fields}
    for spec in tensors:
        if spec.dtype == "float32" and spec.name != LABEL:
            yield from (name for name in spec.fields if dtypes[name] in _WIDER_THAN_FLOAT32)


def _footer(store: Store, name: str) -> pq.FileMetaData:
    try:
        with store.open_input(name) as opened:
            return pq.ParquetFile(opened).metadata
    except UNREADABLE as error:
        raise DatasetError(f"{store.path(name)} is no readable Parquet file: {str(error).partition(chr(10))[0]}; "
                           "leave it out, or write it again.") from None


def _describe(store: Store, name: str, fields: tuple[DataField, ...]) -> DataFile:
    """The manifest's entry of a file."""
    footer = _footer(store, name)
    drift = schema_drift(fields, footer.schema.to_arrow_schema())
    if drift:
        raise DatasetError(f"{store.path(name)} has another schema than the dataset: {in_one_line(drift)}; "
                           "adopt takes files of one schema.")
    _require_no_nulls(footer, name)
    digest = hashlib.sha256()
    with store.open_input(name) as opened:
        size = opened.size()
        while chunk := opened.read(CHUNK_BYTES):
            digest.update(chunk)
    return DataFile(path=name, bytes=size, sha256=digest.hexdigest(), row_group_bytes=row_group_bytes(footer),
                    row_groups=tuple(footer.row_group(number).num_rows for number in range(footer.num_row_groups)))


def _require_no_nulls(footer: pq.FileMetaData, name: str) -> None:
    """Refuse nulls, as far as the footer counts them."""
    for group in (footer.row_group(number) for number in range(footer.num_row_groups)):
        for column in (group.column(number) for number in range(group.num_columns)):
            if column.statistics is not None and column.statistics.has_null_count and column.statistics.null_count:
                raise DatasetError(f"column {column.path_in_schema} of {name} holds nulls; adopt takes numbers as they are. "
                                   "Prepare a dataset from it, which fills them in.")


def _column(store: Store, files: list[str], name: str) -> Array:
    """The values (rows,) of a numeric column of a split."""
    return np.concatenate(list(_columns(store, files, name)))


def _columns(store: Store, files: list[str], name: str) -> Iterator[Array]:
    for file in files:
        with store.open_input(file) as opened:
            column = read_verified(opened, path=store.path(file), columns=[name]).column(name)
        if column.null_count:
            raise DatasetError(f"column {name} of {file} holds {column.null_count} nulls; every row needs one.")
        yield column.to_numpy()


def _require_unique(ids: Array, row_id: str) -> None:
    ordered = np.sort(ids)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise DatasetError(f"{row_id} is not unique: {twice[0]} stands for several rows, in one split or in two; "
                           "name a column that tells all rows apart.")
