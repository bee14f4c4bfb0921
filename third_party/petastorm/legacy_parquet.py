"""The Parquet dataset that Petastorm was written against, over fsspec and ``pyarrow.parquet.ParquetFile``.

pyarrow 15 removed its first ``ParquetDataset`` (with ``pieces``, ``partitions`` and ``common_metadata``), ``ParquetDatasetPiece`` and
its first file systems. Petastorm asks for those names and for little of what they could do; this module is that little, for
pyarrow 14 to 26, and what pandas 3 changed besides. The pieces of a folder are its files, and become row groups later::

    part=a/0.parquet  part=a/1.parquet  part=b/0.parquet  _common_metadata
    ->  pieces with partition_keys [("part", 0)], [("part", 0)], [("part", 1)]; partitions[0].keys == ["a", "b"]

Source of what it does: pyarrow 14.0.2, ``parquet/core.py``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.fs
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.local import LocalFileSystem
from pyarrow.parquet import FileMetaData, ParquetFile, read_metadata

__all__ = ["ParquetDataset", "ParquetDatasetPiece", "PartitionSet", "read_metadata", "to_pandas"]

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
    "in": lambda value, wanted: value in wanted, "not in": lambda value, wanted: value not in wanted,
}


class PartitionSet:
    """The values of one level of ``name=value`` folders, in the order in which they were found."""

    def __init__(self, name: str, keys: list[str] | None = None) -> None:
        self.name = name
        self.keys = keys or []
        self._places = {key: place for place, key in enumerate(self.keys)}
        self._dictionary: pa.Array | None = None

    def get_index(self, key: str) -> int:
        """The place of ``key`` among the values; a new one gets the next."""
        if key not in self._places:
            self._places[key] = len(self.keys)
            self.keys.append(key)
            self._dictionary = None
        return self._places[key]

    @property
    def dictionary(self) -> pa.Array:
        """The values: integers if all of them are, else text."""
        if self._dictionary is None:
            try:
                self._dictionary = pa.array([int(key) for key in self.keys])
            except ValueError:
                self._dictionary = pa.array(self.keys)
        return self._dictionary


class ParquetPartitions(list["PartitionSet"]):
    """The levels of ``name=value`` folders, from the outermost."""

    @property
    def partition_names(self) -> set[str]:
        """The names of all levels."""
        return {level.name for level in self}

    def get_index(self, depth: int, name: str, key: str) -> int:
        """Note a folder ``name=key`` at a depth, and return the place of its value there."""
        if depth == len(self):
            if name in self.partition_names:
                raise ValueError(f"{name} was the name of the partition in another level")
            self.append(PartitionSet(name))
        return self[depth].get_index(key)


class ParquetDatasetPiece:
    """A file of a dataset, or one row group of it.

    Args:
        path: The file's.
        open_file_func: Opens it, as ``open_file_func(path, mode="rb")``.
        row_group: None for all of them.
        partition_keys: (name, place of the value) of each ``name=value`` folder that the file lies in.
    """

    def __init__(self, path: str, open_file_func: Callable[..., Any] = open, row_group: int | None = None,
                 partition_keys: list[tuple[str, int]] | None = None) -> None:
        self.path, self.open_file_func = path, open_file_func
        self.row_group, self.partition_keys = row_group, partition_keys or []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ParquetDatasetPiece) and (self.path, self.row_group, self.partition_keys) == (
            other.path, other.row_group, other.partition_keys)

    __hash__ = None  # type: ignore[assignment] # as before: pieces are compared, and are no keys

    def __repr__(self) -> str:
        return f"ParquetDatasetPiece({self.path!r}, row_group={self.row_group!r}, partition_keys={self.partition_keys!r})"

    def get_metadata(self) -> FileMetaData:
        """The file's footer."""
        with self.open_file_func(self.path, mode="rb") as source:
            return read_metadata(source)

    def read(self, columns: Collection[str] | None = None, partitions: ParquetPartitions | None = None) -> pa.Table:
        """Read the rows, with a column for each partition that the file lies in."""
        wanted = None if columns is None else list(columns)
        with self.open_file_func(self.path, mode="rb") as source:
            file = ParquetFile(source)
            table = file.read(columns=wanted) if self.row_group is None else file.read_row_group(self.row_group, columns=wanted)
        for level, (name, place) in enumerate(self.partition_keys):
            if partitions is None:
                raise ValueError("Must pass partition sets")
            places = np.full(len(table), place, dtype="i4")
            table = table.append_column(name, pa.DictionaryArray.from_arrays(places, partitions[level].dictionary))
        return table


class ParquetDataset:
    """The files of a folder, of the folders in it, or of a list; opens none but ``_metadata`` and ``_common_metadata``.

    Args:
        path_or_paths: A folder, a file, or a list of files; kept as ``paths``.
        filesystem: Where they are: fsspec's or pyarrow's, or whatever has fsspec's methods. Default: this machine's.
        filters: ``(name, operator, value)`` of partitions; a list of them must all hold, of a list of lists any.
        validate_schema, metadata_nthreads: What Petastorm passes; no schema is compared and no footer read, whatever they say.
    """

    def __init__(self, path_or_paths: str | list[str], filesystem: Any = None, filters: list[Any] | None = None,
                 *, validate_schema: bool = False, metadata_nthreads: int = 1) -> None:
        self.paths = path_or_paths
        self.fs = _as_fsspec(filesystem)
        self.pieces: list[ParquetDatasetPiece] = []
        self.partitions: ParquetPartitions | None = None
        self.metadata_path: str | None = None
        self.common_metadata_path: str | None = None
        paths = [path_or_paths] if isinstance(path_or_paths, str) else path_or_paths
        if not paths:
            raise ValueError("Must pass at least one file path")
        if len(paths) == 1 and self.fs.isdir(paths[0]):
            self.partitions = ParquetPartitions()
            self._visit(paths[0].rstrip("/") or "/", [])
            self.pieces.sort(key=lambda piece: piece.path)
        else:
            for path in paths:
                if not self.fs.isfile(path):
                    raise OSError(f"Passed non-file path: {path}")
                self.pieces.append(ParquetDatasetPiece(path, self.fs.open))
        self.metadata = self._footer(self.metadata_path)
        self.common_metadata = self._footer(self.common_metadata_path or self.metadata_path)
        if filters:
            alternatives = [filters] if isinstance(filters[0], tuple) else filters
            self.pieces = [piece for piece in self.pieces if any(self._fits(piece, all_of) for all_of in alternatives)]

    def _footer(self, path: str | None) -> FileMetaData | None:
        if path is None:
            return None
        with self.fs.open(path, mode="rb") as source:
            return read_metadata(source)

    def _visit(self, folder: str, keys: list[tuple[str, int]]) -> None:
        """Add the files of ``folder``, or go on into its folders ``name=value``."""
        assert self.partitions is not None
        _, folders, names = next(iter(self.fs.walk(folder)))
        files = []
        for name in names:
            if name.endswith("_common_metadata"):
                self.common_metadata_path = f"{folder}/{name}"
            elif name.endswith("_metadata"):
                self.metadata_path = f"{folder}/{name}"
            elif name and not name.startswith((".", "_")) and not name.endswith((".crc", "_$folder$")):
                files.append(f"{folder}/{name}")
        inner = sorted(name for name in folders if "=" in name or not name.startswith((".", "_")))
        if files and inner:
            raise ValueError(f"Found files in an intermediate directory: {folder}")
        for name in inner:
            field, found, value = name.partition("=")
            if not found:
                raise ValueError(f"Directory name did not appear to be a partition: {name}")
            place = self.partitions.get_index(len(keys), field, value)
            self._visit(f"{folder}/{name}", [*keys, (field, place)])
        self.pieces += [ParquetDatasetPiece(path, self.fs.open, partition_keys=keys) for path in sorted(files)]

    def _fits(self, piece: ParquetDatasetPiece, conditions: list[tuple[str, str, Any]]) -> bool:
        """Whether the piece's partitions fulfil all conditions; one on a column that is no partition is fulfilled."""
        assert self.partitions is not None or not piece.partition_keys
        for level, (name, place) in enumerate(piece.partition_keys):
            for column, compare, wanted in conditions:
                if column != name:
                    continue
                if compare not in _COMPARE:
                    raise ValueError(f"{compare!r} is not a valid operator in predicates.")
                kind = type(next(iter(wanted))) if compare in ("in", "not in") else type(wanted)
                if not _COMPARE[compare](kind(self.partitions[level].dictionary[place].as_py()), wanted):
                    return False
        return True


def to_pandas(data: pa.Table | pa.Array | pa.ChunkedArray, **options: Any) -> pd.DataFrame | pd.Series[Any]:
    """Convert as ``data.to_pandas`` did until pandas 3: text as objects, and None for a value that is missing."""
    made = data.to_pandas(**options)
    if isinstance(made, pd.Series):
        return _as_objects(made) if isinstance(made.dtype, pd.StringDtype) else made
    for name in [name for name, dtype in made.dtypes.items() if isinstance(dtype, pd.StringDtype)]:
        made[name] = _as_objects(made[name])
    return made


def _as_objects(column: pd.Series[Any]) -> pd.Series[Any]:
    return pd.Series(column.to_numpy(dtype=object, na_value=None), index=column.index, name=column.name, dtype=object)


def _as_fsspec(filesystem: Any) -> Any:
    """The file system with the methods that Petastorm calls: ``open``, ``walk``, ``exists``, ``isdir``, ``isfile``, ``rm``."""
    if filesystem is None:
        return LocalFileSystem()
    return ArrowFSWrapper(filesystem) if isinstance(filesystem, pyarrow.fs.FileSystem) else filesystem
