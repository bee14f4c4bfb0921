"""Reads an epoch of a dataset and says what memory that took; a test runs it in a process of its own.

    python -m tests.support.loader_memory FOLDER MEMORY_MB BATCH_ROWS     # the datasets are FOLDER/large and FOLDER/small
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.process_memory import peak_rss_mb
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.loading.reader import SplitReader


@dataclass(frozen=True)
class Measured:
    """Memory of one process, in MiB."""

    before_mb: float
    """What it had held at most when modules and pools were loaded."""
    peak_mb: float
    """What it held at most."""
    rows: int


def _read(folder: Path, memory_mb: float, batch_rows: int) -> int:
    """Read an epoch as one rank with all lanes; returns its rows."""
    dataset = Dataset(str(folder))
    reader = SplitReader(dataset.store, dataset.manifest(), "train")
    config = LoaderConfig(batch_rows=batch_rows, seed=1, lanes=24, memory_mb=memory_mb, spill_folder=folder)
    return sum(batch.rows for batch in Loader(reader, config, rank=0, num_ranks=1).epoch(0))


def main() -> None:
    """Measure and print."""
    folder, memory_mb, batch_rows = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    _read(folder / "small", memory_mb, batch_rows)
    before = peak_rss_mb()
    rows = _read(folder / "large", memory_mb, batch_rows)
    print(json.dumps(asdict(Measured(before_mb=before, peak_mb=peak_rss_mb(), rows=rows))))


if __name__ == "__main__":
    main()
