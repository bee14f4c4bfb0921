"""Each platform's versions: our wheels installed beside them, then one job on two ranks there, equal to the checkout's own.

    uv run python -m benchmarks.matrix                  # all cells; `make test-platforms` is the same
    uv run python -m benchmarks.matrix pypi emr-7       # these, beside the checkout's own
    uv run python -m benchmarks.matrix --jobs-only      # without the unit tests
    uv run python -m benchmarks.matrix --again          # also those that are green already

The cells are those of harness/platforms.toml. In each a real Python gets the platform's packages, then our wheels by plain pip, which may
replace none of them. The job (harness/cell_jobs.py) must prove each row read exactly once, give the same rows and encoded values as in the
checkout's own environment, and predict as well. Then the unit tests run in the outermost cells. A cell that fails says how, and the others
go on. Green results are kept in .cells/results, and hold as long as the product, its recipes and the cell are the same bytes; a run without
the unit tests keeps none of a cell that has them.
`python scripts/figures.py --output matrix=FILE` writes README's table.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.support.report import print_result
from harness.cell_environments import FOLDER, ROOT, CellFailure, Installed, make, remove
from harness.cell_jobs import JobFigures, run_job
from harness.cell_tests import run_unit_tests
from harness.cells import CHECKOUT, OUTERMOST, SHOWN, Cell, checkout_cell, platforms
from sparkring.spark_jobs.spark.session import java_version

RESULTS = FOLDER / "results"
PRODUCT = ("conf", "models", "pipelines", "spark_jobs", "sparkring", "third_party")
JOB = (ROOT / "harness/cell_jobs.py", ROOT / "harness/cell_environments.py", ROOT / "harness/small_configs.py")
TESTS = (ROOT / "harness/cell_tests.py", *sorted((ROOT / "tests").rglob("*.py")))
AUC_WITHIN = 0.01
"""Torch's releases round differently: the same rows give other weights, and an AUC that differs in the third decimal."""

Result = dict[str, Any]


def main() -> None:
    """Run the cells, and print a table and the figures."""
    parser = argparse.ArgumentParser(description="Run each platform's cell of versions.")
    parser.add_argument("cells", nargs="*", help="names of platforms.toml; default all")
    parser.add_argument("--jobs-only", action="store_true", help="leave the unit tests out")
    parser.add_argument("--again", action="store_true", help="run cells that are green already, too")
    options = parser.parse_args()
    listed = platforms()
    cells = (checkout_cell(), *listed.named(options.cells))
    results: list[Result] = []
    for cell in cells:
        kept = None if options.again else _kept(cell)
        results.append(kept or _run(cell, results[0] if results else None, unit_tests=not options.jobs_only and cell.name in OUTERMOST))
    green = sum(result["green"] for result in results)
    print_result(
        [{"cell": result["cell"], "python": result["python"], **{name: result["versions"][name] for name in SHOWN},
          "AUC": result.get("auc", ""), "s": result["seconds"], "": "green" if result["green"] else result["why"]} for result in results],
        {"cells": len(results), "green": green, "pythons": len({result["python"] for result in results if result["green"]}),
         "sparks": len({result["spark"] for result in results if result["green"]}), "seconds": sum(result["seconds"] for result in results),
         "runs": results, "absent": [absent.model_dump() for absent in listed.absent]})
    if green < len(results):
        sys.exit(1)


def _run(cell: Cell, reference: Result | None, *, unit_tests: bool) -> Result:
    """Run one cell, and keep what came out if it is green."""
    began, tests = time.perf_counter(), 0
    facts = {"cell": cell.name, "platform": cell.platform, "python": cell.python, "spark": cell.spark, "differs": list(cell.differs),
             "java": cell.java.partition(".")[0] or str(java_version()),
             "date": dt.datetime.now(dt.UTC).date().isoformat(), "commit": _commit(), "of": _of(cell)}
    print(f"[matrix] {cell.name}", file=sys.stderr, flush=True)
    try:
        installed = Installed(sys.executable, cell.packages, {}) if cell.name == CHECKOUT else make(cell)
        job = run_job(Path(installed.python), FOLDER / "jobs" / cell.name, texts=True)
        _compare(job, reference)
        if unit_tests:
            tests = run_unit_tests(cell)
    except Exception as failure:  # noqa: BLE001 (whatever fails in a cell, the others go on)
        why = str(failure) if isinstance(failure, CellFailure) else f"{type(failure).__name__}: {failure}"
        return facts | {"versions": cell.packages, "green": False, "why": why, "seconds": round(time.perf_counter() - began)}
    result = facts | {
        "versions": installed.versions, "replaced": installed.replaced, "green": True, "rows": job.rows, "scored": job.scored,
        "auc": round(job.auc, 4), "rows_digest": job.rows_digest, "values_sha256": job.values_sha256, "texts_sha256": job.texts_sha256,
        "unit_tests": tests,
        "job_seconds": round(job.seconds), "seconds": round(time.perf_counter() - began)}
    if cell.name not in (CHECKOUT, *OUTERMOST):
        remove(cell)
    if unit_tests or cell.name not in OUTERMOST:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{cell.name}.json").write_text(json.dumps(result), encoding="utf-8")
    return result


def _compare(job: JobFigures, reference: Result | None) -> None:
    """Hold a cell's job to that of the checkout's own environment."""
    if reference is None:
        return
    if not reference["green"]:
        raise CellFailure("the checkout's own cell is not green, so there is nothing to compare with")
    found = {"rows_digest": job.rows_digest, "values_sha256": job.values_sha256, "texts_sha256": job.texts_sha256}
    if other := {name: digest for name, digest in found.items() if digest != reference[name]}:
        raise CellFailure(f"digests are not those of {CHECKOUT}: {other}")
    if abs(job.auc - reference["auc"]) > AUC_WITHIN:
        raise CellFailure(f"AUC {job.auc:.4f} is more than {AUC_WITHIN} from {reference['auc']} in {CHECKOUT}")


def _kept(cell: Cell) -> Result | None:
    """What the cell gave, if it was green and all that it ran is the same now."""
    file = RESULTS / f"{cell.name}.json"
    found: Result | None = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    return found if found and found["of"] == _of(cell) else None


def _of(cell: Cell) -> str:
    """A hash of what a cell runs: its versions, the product, the recipes, the job and, where it runs them, the tests."""
    files = (file for folder in PRODUCT for file in sorted((ROOT / folder).rglob("*")) if file.suffix in {".py", ".yaml", ".toml"})
    tests = TESTS if cell.name in OUTERMOST else ()
    parts = (cell.model_dump_json().encode(), sys.version.encode(),
             *(file.read_bytes() for file in (*files, ROOT / "pyproject.toml", *JOB, *tests)))
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _commit() -> str:
    return subprocess.run(["git", "rev-parse", "--short=7", "HEAD"], cwd=ROOT, capture_output=True, check=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
