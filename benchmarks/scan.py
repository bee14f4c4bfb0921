"""The check before a run's first step: files a second whose footers are compared with the manifest.

    uv run python -m benchmarks.scan

4,000 small files of 33 columns and two row groups on local disk, page cache warm. Beside it, in the same rounds, what reading
the same footers costs with nothing but pyarrow, one after the other, and how Petastorm finds its row groups without the
summary it keeps: the footers of all files through its own thread pool.
"""

from __future__ import annotations

import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.support.report import print_result
from sparkring.pipelines.data.dataset.integrity import check_footers, row_group_bytes
from sparkring.pipelines.data.dataset.manifest import DataFile, Manifest, Split, content_id
from sparkring.pipelines.data.dataset.preprocessing import Preprocessing
from sparkring.pipelines.data.dataset.row_schema import DataField
from sparkring.pipelines.data.stores.open import open_store

NUM_FILES = 4_000
ROWS = 64
COLUMNS = 33
ROUNDS = 5


def write_files(folder: Path) -> Manifest:
    """Write the files, one table with another first value each, and describe them."""
    names = [f"x{number}" for number in range(COLUMNS)]
    schema = pa.schema([pa.field(name, pa.float32(), nullable=False) for name in names])
    values = np.random.default_rng(0).standard_normal((COLUMNS, ROWS)).astype(np.float32)
    files = []
    for number in range(NUM_FILES):
        values[0, 0] = number
        path = folder / "data" / f"part-{number:05d}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(list(map(pa.array, values)), schema=schema), path, row_group_size=ROWS // 2)
        footer = pq.read_metadata(path)
        files.append(DataFile(path=str(path.relative_to(folder)), bytes=path.stat().st_size,
                              sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
                              row_groups=(ROWS // 2, ROWS // 2), row_group_bytes=row_group_bytes(footer)))
    fields = tuple(DataField(name=name, dtype="float32") for name in names)
    splits = {"train": Split(files=tuple(files), rows=NUM_FILES * ROWS, rows_digest="0" * 16)}
    return Manifest(version=1, parent=None, data_id="d", content_id=content_id(fields, splits), recipe_id="", created_at="",
                    code_version="", row_id="x0", label="x1", fields=fields, tensors=(), splits=splits, recipe={}, source={},
                    preprocessing=Preprocessing(numeric=(), categorical=(), train_rows=0))


def seconds(work: Callable[[], object]) -> float:
    """Seconds that ``work`` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_files(Path(folder))
        store, files = open_store(folder), manifest.splits["train"].files

        def ours() -> None:
            assert check_footers(store, manifest, files) == []

        def pyarrow() -> None:
            for file in files:
                pq.read_metadata(f"{folder}/{file.path}")

        def petastorm() -> None:
            from petastorm.etl.dataset_metadata import _split_row_groups_from_footers
            from petastorm.legacy_parquet import ParquetDataset

            pieces = _split_row_groups_from_footers(ParquetDataset(f"{folder}/data"))
            assert len(pieces) == 2 * NUM_FILES

        sides: dict[str, Callable[[], None]] = {"sparkring": ours, "pyarrow": pyarrow, "petastorm": petastorm}
        rounds = [{name: seconds(work) for name, work in sides.items()} for _ in range(1 + ROUNDS)][1:]  # the first one warms
    rates = {name: NUM_FILES / statistics.median(each[name] for each in rounds) for name in sides}
    print_result(
        [{"what": name, "files/s": f"{rates[name]:,.0f}", "seconds": " ".join(f"{each[name]:.2f}" for each in rounds)} for name in sides],
        {"files_per_s": rates["sparkring"], "ratio_to_pyarrow": rates["sparkring"] / rates["pyarrow"],
         "ratio_to_petastorm": rates["sparkring"] / rates["petastorm"], "files": NUM_FILES, "columns": COLUMNS})


if __name__ == "__main__":
    main()
