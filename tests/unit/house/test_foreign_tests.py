"""Another package's tests, run for a benchmark: whatever a test does to its process, each gets its own outcome."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.support.foreign_tests import outcomes

TESTS = """
import os, pathlib, pytest
def test_passes(): pass
def test_fails(): assert False
def test_ends_the_process(): os.abort()
def test_after_it_passes(): pass
def test_passes_at_the_second_try():
    once = pathlib.Path(__file__).with_name("once")
    again = once.exists()
    once.touch()
    assert again
@pytest.mark.skip(reason="so")
def test_is_skipped(): pass
@pytest.fixture
def torn():
    yield
    assert False
def test_fails_in_its_teardown(torn): pass
@pytest.mark.parametrize("value", ["a b", "[c]"])
def test_of_odd_names(value): pass
"""


def test_each_test_has_its_outcome(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/test_all.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "theirs/test_broken.py").write_text("import no_such_module\ndef test_never_runs(): pass\n", encoding="utf-8")
    found = outcomes(Path(sys.executable), tmp_path, ["theirs"], environment=os.environ)
    assert {name.partition("::")[2]: outcome for name, outcome in found.items()} == {
        "test_passes": "passed", "test_fails": "failed", "test_ends_the_process": "failed", "test_after_it_passes": "passed",
        "test_passes_at_the_second_try": "passed", "test_is_skipped": "skipped", "test_fails_in_its_teardown": "failed",
        "test_of_odd_names[a b]": "passed", "test_of_odd_names[[c]]": "passed"}
