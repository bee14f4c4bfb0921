"""What ``benchmarks.mosaic_streaming`` runs in MosaicML Streaming's own environment; it imports nothing of ours.

    python mosaic_side.py convert FOLDER KIND        FOLDER/KIND/data/d1/train/*.parquet -> FOLDER/mds-KIND, by their writer
    python mosaic_side.py rate FOLDER KIND BATCH WORKERS

A row of a table is one array of 33 numbers there: a column each would cost them 33 decodings a row.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from streaming import MDSWriter, StreamingDataset  # type: ignore[import-not-found, unused-ignore]
from torch.utils.data import DataLoader

FILES = 2
"""Of each kind, converted: their writer takes a row at a time."""
ENCODINGS = {"table": "ndarray:float32:33", "images": "png", "tokens": "ndarray:int32:512"}
DECODED: dict[str, Callable[[Any], torch.Tensor]] = {
    "table": torch.from_numpy,
    "images": lambda image: torch.from_numpy((np.asarray(image, dtype=np.float32)[None] / 255 - 0.5) / 0.25),
    "tokens": lambda tokens: torch.from_numpy(tokens.astype(np.int64))}


class Rows(StreamingDataset):  # type: ignore[misc, unused-ignore]
    """Rows as the tensors that our loader gives."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__(**options)
        self._decoded = DECODED[kind]

    def __getitem__(self, place: int) -> torch.Tensor:
        """One row; theirs is decoded, not yet a tensor."""
        return self._decoded(super().__getitem__(place)["x"])


def convert(folder: Path, kind: str) -> None:
    """Write the rows of some files as MDS."""
    files = sorted((folder / kind).rglob("*.parquet"))[:FILES]
    with MDSWriter(out=str(folder / f"mds-{kind}"), columns={"x": ENCODINGS[kind]}) as writer:
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches():
                for row in _rows(batch, kind):
                    writer.write({"x": row})


def _rows(batch: pa.RecordBatch, kind: str) -> Iterator[Any]:
    if kind == "table":
        yield from np.stack([column.to_numpy() for column in batch.columns], axis=1)
    elif kind == "images":
        yield from (Image.open(io.BytesIO(cell)) for cell in batch.column("x").to_pylist())
    else:
        yield from (np.load(io.BytesIO(cell)) for cell in batch.column("x").to_pylist())


def rate(folder: Path, kind: str, *, batch_rows: int, workers: int) -> dict[str, float]:
    """Rows a second, from the making of the loader to its last batch."""
    began = time.perf_counter()
    dataset = Rows(kind, local=str(folder / f"mds-{kind}"), shuffle=True, batch_size=batch_rows, shuffle_seed=1)
    rows = sum(len(batch) for batch in DataLoader(dataset, batch_size=batch_rows, num_workers=workers))
    return {"rows": rows, "rows_per_s": rows / (time.perf_counter() - began)}


if __name__ == "__main__":
    if sys.argv[1] == "convert":
        convert(Path(sys.argv[2]), sys.argv[3])
    else:
        print(json.dumps(rate(Path(sys.argv[2]), sys.argv[3], batch_rows=int(sys.argv[4]), workers=int(sys.argv[5]))))
