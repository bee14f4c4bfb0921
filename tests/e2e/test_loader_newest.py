"""The loader needs neither Petastorm nor Spark, so it also runs where only newer packages exist: pyarrow and NumPy 2 of today."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.cell_environments import call, uv
from tests.support.encoded_datasets import Rows, write_encoded_dataset

READ = """
import json, sys
import numpy, pyarrow, torch
from sparkring.pipelines.data.loading import plain_pages
from sparkring.pipelines.data.loading.loader import Loader, LoaderConfig
from sparkring.pipelines.data.dataset.versions import Dataset
from sparkring.pipelines.data.loading.reader import SplitReader

plain_pages.FEWEST_ROWS, past_arrow, original = 1, [], plain_pages.PlainPages.values
def noted(self, group, name, **rows):
    values = original(self, group, name, **rows)
    past_arrow.append(name if values is not None else f"{name}: none")
    return values
plain_pages.PlainPages.values = noted
dataset = Dataset(sys.argv[1])
loader = Loader(SplitReader(dataset.store, dataset.manifest(), "train"), LoaderConfig(batch_rows=16, seed=3, lanes=6), rank=0, num_ranks=1)
batches = list(loader.epoch(0))
rows = {name: torch.cat([batch.tensors[name] for batch in batches]).tolist() for name in ("row_id", "tokens", "packed")}
print(json.dumps({"numpy": numpy.__version__, "pyarrow": pyarrow.__version__, "rows": rows, "images": len(batches[0].tensors["image"]),
                  "past_arrow": sorted(set(past_arrow)),
                  "heavy": sorted({"petastorm", "pyspark"} & set(sys.modules))}))
"""

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the newest pyarrow and NumPy, to come before this environment's."""
    folder = tmp_path_factory.mktemp("newest")
    call(uv(), "pip", "install", "--quiet", "--python", sys.executable, "--target", folder, "pyarrow", "numpy>=2", within_s=300)
    return folder


def test_the_loader_gives_the_same_rows_with_the_newest_pyarrow_and_numpy(tmp_path: Path, newest: Path) -> None:
    dataset, rows = write_encoded_dataset(tmp_path, (50, 1, 0, 70, 33))
    done = subprocess.run([sys.executable, "-c", READ, dataset.url], check=True, capture_output=True, text=True, timeout=120,
                          env=os.environ | {"PYTHONPATH": str(newest)})
    found = json.loads(done.stdout)
    assert int(found["pyarrow"].partition(".")[0]) >= 20
    assert int(found["numpy"].partition(".")[0]) >= 2
    assert found["heavy"] == []
    assert found["past_arrow"] == ["row_id"]
    assert found["images"] == 16
    _are_equal(found["rows"], rows)


def _are_equal(found: dict[str, Any], rows: Rows) -> None:
    order = np.array(found["row_id"])
    assert sorted(found["row_id"]) == list(range(len(rows.tokens)))
    np.testing.assert_array_equal(np.array(found["tokens"]), rows.tokens[order])
    np.testing.assert_array_equal(np.array(found["packed"]), rows.packed[order])
