"""Data files as ``prepare`` writes them, and version 1 of a dataset of them, with Petastorm's metadata: for what reads large ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.parquet_files import write_parquet
from sparkring.pipelines.data.dataset.manifest import DataFile, Manifest, Split
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.data.dataset.row_schema import DataField, TensorSpec
from sparkring.pipelines.data.dataset.unischema_pickle import COMMON_METADATA
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.spark_jobs.etl.encoding.schema_pickle import pickled_unischema


def files_of(folder: Path, make: Callable[[int], pa.Table], *, files: int, groups: int, rows: int) -> Iterator[DataFile]:
    """Write files as ``prepare`` does: no nulls, Snappy, no dictionary, page checksums, row groups of one size but the last one's."""
    generator = np.random.default_rng(1)
    for number in range(files):
        path = Path("data/d1/train") / f"part-{number:05d}.parquet"
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        last = rows - int(generator.integers(0, rows // 20)) if groups > 1 else rows
        table = make((groups - 1) * rows + last)
        table = table.cast(pa.schema([field.with_nullable(nullable=False) for field in table.schema]))
        write_parquet(table, folder / path, row_group_size=rows, use_dictionary=False, compression="snappy", data_page_version="2.0")
        content = (folder / path).read_bytes()
        yield DataFile(path=path.as_posix(), bytes=len(content), sha256=hashlib.sha256(content).hexdigest(),
                       row_groups=(*(rows,) * (groups - 1), last), row_group_bytes=(len(content) // groups,) * groups)


def commit(folder: Path, fields: tuple[DataField, ...], spec: TensorSpec, files: Iterator[DataFile]) -> None:
    """Commit version 1: one tensor, Petastorm's metadata beside the files."""
    written = tuple(files)
    split = Split(files=written, rows=sum(file.rows for file in written), rows_digest="0" * 16)
    _add_petastorm_metadata(folder / "data/d1/train", fields, {Path(file.path).name: len(file.row_groups) for file in written})
    Dataset(str(folder)).commit(Manifest(
        version=1, parent=None, data_id="d1", content_id="", recipe_id="", created_at="", code_version="", row_id="", label="",
        fields=fields, tensors=(spec,), splits={"train": split}, recipe={}, source={},
        preprocessing=Preprocessing(numeric=(), categorical=(), train_rows=0)))


def _add_petastorm_metadata(folder: Path, fields: tuple[DataField, ...], row_groups: dict[str, int]) -> None:
    from sparkring.spark_jobs.etl.encoding.petastorm_schema import dataset_metadata  # imports pyspark

    metadata = dataset_metadata(pq.read_schema(folder / next(iter(row_groups))), pickled_unischema("benchmark", fields), row_groups)
    (folder / COMMON_METADATA).write_bytes(metadata)
