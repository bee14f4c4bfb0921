"""The files that ``benchmarks.loader`` reads: written with Arrow as Spark writes them, with Petastorm's metadata and our manifest."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from sparkring.pipelines.data.dataset.manifest import DataFile, Manifest, Split
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.data.dataset.row_schema import DataField, ImageSpec, TensorSpec
from sparkring.pipelines.data.dataset.versions import Dataset
from tests.support.parquet_files import write_parquet

COLUMNS = tuple(f"c{number:02d}" for number in range(33))
SIDE, LENGTH = 28, 512
_generator = np.random.default_rng(1)


def write_all(folder: Path) -> None:
    """Commit a dataset of each kind under ``folder``."""
    for kind, write in KINDS.items():
        write(folder / kind)


def write_table(folder: Path) -> None:
    """5 M rows in 8 files of 12 row groups, 7 MB each."""
    def rows(count: int) -> pa.Table:
        return pa.table({name: _generator.standard_normal(count).astype(np.float32) for name in COLUMNS})

    fields = tuple(DataField(name=name, dtype="float32") for name in COLUMNS)
    commit(folder, fields, TensorSpec(name="x", dtype="float32", fields=COLUMNS), files_of(folder, rows, files=8, groups=12, rows=52_084))


def write_images(folder: Path) -> None:
    """24,576 smooth grey images as PNG."""
    import cv2

    def encoded(image: np.ndarray) -> bytes:  # type: ignore[type-arg]
        return bytes(cv2.imencode(".png", image)[1])

    def rows(count: int) -> pa.Table:
        small = _generator.integers(0, 256, (count, 7, 7), dtype=np.uint8)
        images = (cv2.resize(one, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC) for one in small)
        return pa.table({"x": pa.array([encoded(image) for image in images], pa.binary())})

    field = DataField(name="x", dtype="uint8", shape=(SIDE, SIDE), codec="png")
    spec = TensorSpec(name="x", dtype="float32", fields=("x",), stacked=False, shape=(1, SIDE, SIDE),
                      image=ImageSpec(mean=(0.5,), std=(0.25,)))
    commit(folder, (field,), spec, files_of(folder, rows, files=4, groups=24, rows=256))


def write_tokens(folder: Path) -> None:
    """49,152 sequences as .npy cells."""
    def encoded(tokens: np.ndarray) -> bytes:  # type: ignore[type-arg]
        cell = io.BytesIO()
        np.save(cell, tokens)
        return cell.getvalue()

    def rows(count: int) -> pa.Table:
        tokens = _generator.integers(0, 256, (count, LENGTH), dtype=np.int32)
        return pa.table({"x": pa.array([encoded(row) for row in tokens], pa.binary())})

    field = DataField(name="x", dtype="int32", shape=(LENGTH,), codec="ndarray")
    spec = TensorSpec(name="x", dtype="int64", fields=("x",), stacked=False, shape=(LENGTH,))
    commit(folder, (field,), spec, files_of(folder, rows, files=4, groups=24, rows=512))


KINDS: dict[str, Callable[[Path], None]] = {"table": write_table, "images": write_images, "tokens": write_tokens}


def files_of(folder: Path, make: Callable[[int], pa.Table], *, files: int, groups: int, rows: int) -> Iterator[DataFile]:
    """Write files as ``prepare`` does: no nulls, Snappy, no dictionary, page checksums, row groups of one size but the last one's."""
    for number in range(files):
        path = Path("data/d1/train") / f"part-{number:05d}.parquet"
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        last = rows - int(_generator.integers(0, rows // 20)) if groups > 1 else rows
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
    from petastorm.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
    from petastorm.unischema import Unischema, UnischemaField
    from pyspark.sql.types import FloatType

    from sparkring.spark_jobs.etl.encoding.petastorm_schema import write_metadata

    codecs = {"scalar": lambda: ScalarCodec(FloatType()), "png": lambda: CompressedImageCodec("png"), "ndarray": NdarrayCodec}
    described = [UnischemaField(field.name, np.dtype(field.dtype).type, field.shape, codecs[field.codec](), nullable=False)
                 for field in fields]
    write_metadata(folder, Unischema("benchmark", described), row_groups)
