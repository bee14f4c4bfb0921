"""Rows a second to shuffled tensors: our loader beside MosaicML Streaming, on the same rows and the same machine.

    uv run python -m benchmarks.mosaic_streaming

Their package wants a newer NumPy than ours, so it gets an environment of its own under ``~/.cache/sparkring``, made at the first call
with the torch release that we use; the project does not depend on it. Where it cannot be installed, the last line says so and why.
Both sides run in processes of their own, in turn, with as many workers as our loader has threads. Ours reads Parquet, theirs the
MDS files that their writer made of a part of the same rows; a rate runs from the making of the loader to its last batch.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.loader import BATCH, ROUNDS, THREADS, measure
from benchmarks.support.loader_data import KINDS, write_all
from benchmarks.support.report import print_result
from harness.cell_environments import CellFailure, call, uv

RELEASE = "0.13.0"
TORCH = version("torch").partition("+")[0]
HOME = Path.home() / f".cache/sparkring/mosaic-streaming-{RELEASE}-torch{TORCH}"
SIDE = Path(__file__).parent / "support/mosaic_side.py"
INSTALL_S, CONVERT_S, RATE_S = 1200, 600, 600
Measured = dict[str, list[dict[str, dict[str, Any]]]]


def environment() -> Path:
    """Python of their environment, which is made if it is not there, whole.

    Raises:
        CellFailure: uv is missing, or the packages cannot be had; the text says which.
    """
    python, done = HOME / "bin/python", HOME / "complete"
    if done.exists():
        return python
    call(uv(), "venv", "--clear", "--python", sys.executable, HOME)
    call(uv(), "pip", "install", "--python", python, f"mosaicml-streaming=={RELEASE}", f"torch=={TORCH}", "pyarrow", within_s=INSTALL_S)
    call(python, "-c", "import streaming")
    done.touch()
    return python


def main() -> None:
    """Measure all kinds and print."""
    try:
        python = environment()
    except CellFailure as failure:
        why = " ".join(str(failure).split())[-300:]
        print_result([{"side": f"MosaicML Streaming {RELEASE}", "rows/s": "not installed"}], {"installed": False, "why": why})
        return
    seen: Measured = {}
    with tempfile.TemporaryDirectory(prefix="sparkring-mosaic-") as name:
        write_all(Path(name))
        for kind in KINDS:
            subprocess.run([python, SIDE, "convert", name, kind], check=True, timeout=CONVERT_S)
            seen[kind] = [{"sparkring": measure("sparkring", Path(name), kind), "mosaic": _measure(python, name, kind)}
                          for _ in range(ROUNDS)]
    _print(seen)


def _measure(python: Path, folder: str, kind: str) -> dict[str, Any]:
    command = [str(python), str(SIDE), "rate", folder, kind, str(BATCH[kind]), str(THREADS)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=RATE_S).stdout
    measured: dict[str, Any] = json.loads(output.splitlines()[-1])
    print(f"{kind}: mosaic {measured['rows_per_s']:,.0f} rows/s", flush=True)
    return measured


def _print(seen: Measured) -> None:
    ratios = {kind: statistics.median(one["sparkring"]["rows_per_s"] / one["mosaic"]["rows_per_s"] for one in rounds)
              for kind, rounds in seen.items()}
    rates = {(kind, side): statistics.median(one[side]["rows_per_s"] for one in rounds)
             for kind, rounds in seen.items() for side in ("sparkring", "mosaic")}
    print_result(
        [{"rows": kind, "side": side, "rows/s": f"{rate:,.0f}"} for (kind, side), rate in rates.items()],
        {"installed": True, "release": RELEASE, "ratio_to_mosaic": ratios["table"], "images_ratio_to_mosaic": ratios["images"],
         "tokens_ratio_to_mosaic": ratios["tokens"], "mosaic_rows_per_s": rates["table", "mosaic"]})


if __name__ == "__main__":
    main()
