"""The job and the unit tests that depend on versions, in the oldest and in the newest cell of versions beside the checkout's own.

scripts/bootstrap.sh --cells makes the environments; the code is the checkout's as it is now. `make test-platforms` runs all cells, and in
these two all folders of tests/unit but house and third_party, which test the checkout itself. They take minutes a cell; here, within
`make test`, run those of them in which a library does the work.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cell_environments import FOLDER, ROOT, call, is_made
from harness.cell_jobs import JobFigures, run_job
from harness.cells import OUTERMOST, platforms
from tests.support.own_wheel import build_wheel

VERSIONS_MATTER = (
    "data/test_loader_encoded.py", "data/test_plain_pages.py", "data/test_unischema_pickle.py",
    "data/test_page_checksums.py::test_a_flipped_bit_is_refused_or_changes_nothing[dictionaries and small pages]",
    "spark_jobs/test_npy.py", "spark_jobs/test_schema_pickle.py", "spark_jobs/test_spark_versions.py", "conf", "models/test_text_model.py")
"""Unit tests of what Arrow, NumPy, pydantic, Spark and torch do for us."""

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not all(map(is_made, platforms().named(OUTERMOST))),
                       reason="scripts/bootstrap.sh --cells has not made the environments")]


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The interpreters of the environments, with the checkout's wheel as it is now."""
    wheel = build_wheel(tmp_path_factory.mktemp("source"))
    found = {name: FOLDER / name / "bin" / "python" for name in OUTERMOST}
    for python in found.values():
        call(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--force-reinstall", wheel)
    return found


@pytest.fixture(scope="module")
def jobs(pythons: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, JobFigures]:
    return {name: run_job(python, tmp_path_factory.mktemp("job") / "cell") for name, python in pythons.items()}


def test_a_job_reads_each_row_once_and_makes_the_same_values_in_the_oldest_and_the_newest_cell(jobs: dict[str, JobFigures]) -> None:
    oldest, newest = (jobs[name] for name in OUTERMOST)
    assert (oldest.rows, oldest.scored, oldest.rows_digest) == (newest.rows, newest.scored, newest.rows_digest)
    assert oldest.values_sha256 == newest.values_sha256
    assert oldest.auc == pytest.approx(newest.auc, abs=0.01)
    assert oldest.auc > 0.6


@pytest.mark.parametrize("name", OUTERMOST)
def test_unit_tests_that_depend_on_versions_pass_there(pythons: dict[str, Path], name: str) -> None:
    out = call(pythons[name], "-m", "pytest", "--quiet", *(f"tests/unit/{test}" for test in VERSIONS_MATTER), cwd=ROOT)
    assert " passed" in out.splitlines()[-1]
    assert " failed" not in out
