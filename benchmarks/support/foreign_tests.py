"""A package's own tests, run in an environment of their own; a test that ends the whole process costs the others nothing.

A line is logged when a test begins and after each of its steps. Where the process died, the test that had begun and not ended
counts as failed, and the tests that are left run in a new process.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

PYTEST = ("pytest>=8.2", "pytest-timeout>=2.3")
"""What the environment needs beside the package and what its tests import."""
_PLUGIN = """
import json, os
def log(*words):
    with open(os.environ["OUTCOMES"], "a", encoding="utf-8") as file:
        print(json.dumps(words), file=file)
def pytest_runtest_logstart(nodeid, location):
    log(nodeid, "start", "")
def pytest_runtest_logreport(report):
    log(report.nodeid, report.when, report.outcome)
"""
TEST_S, ALL_S = 180, 3600
CHANCES = 5
"""Petastorm's `test_cleanup_cache_manual_call`, for one, fails in one run of three: it races with its reader's threads."""
OPTIONS = ("-p", "no:cacheprovider", "-q", "--no-header", "--disable-warnings", "--continue-on-collection-errors")


def outcomes(python: Path, folder: Path, paths: Sequence[str], *, environment: Mapping[str, str]) -> dict[str, str]:
    """Run the tests; one that fails is run again after all others, ``CHANCES`` times in all, as some depend on the machine's load.

    Args:
        python: Of the environment.
        folder: Where pytest starts; the tests' names begin here.
        paths: Files and options that say which tests.
        environment: Of pytest's process.
    Returns:
        Name of a test -> ``passed``, ``failed`` or ``skipped``.
    """
    tests = _collected(python, folder, paths, environment)
    found = _run(python, folder, tests, environment)
    for _ in range(CHANCES - 1):
        failed = [test for test in tests if found[test] == "failed"]
        if failed:
            found |= _run(python, folder, failed, environment)
    return found


def _collected(python: Path, folder: Path, paths: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    ended = _pytest(python, folder, ["--collect-only", *paths], environment)
    return [line for line in ended.stdout.splitlines() if "::" in line and not line.startswith(("ERROR", "FAILED"))]


def _run(python: Path, folder: Path, tests: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    while left := [test for test in tests if test not in found]:
        with tempfile.TemporaryDirectory() as work:
            names, log = Path(work) / "tests.txt", Path(work) / "log.jsonl"
            names.write_text("\n".join(left), encoding="utf-8")
            (Path(work) / "log_outcomes.py").write_text(_PLUGIN, encoding="utf-8")
            log.touch()
            _pytest(python, folder, [f"@{names}", "-p", "log_outcomes", f"--timeout={TEST_S}"],
                    {**environment, "PYTHONPATH": work, "OUTCOMES": str(log)})
            told = _outcomes_of(log.read_text(encoding="utf-8").splitlines())
        found |= {test: told[test] for test in left if test in told} or {left[0]: "failed"}
    return found


def _outcomes_of(lines: Sequence[str]) -> dict[str, str]:
    """The outcome of each test that has begun: failed if a step failed, or if it has not come to its end."""
    steps: dict[str, dict[str, str]] = {}
    for line in lines:
        test, step, outcome = json.loads(line)
        steps.setdefault(test, {})[step] = outcome
    return {test: "failed" if "teardown" not in seen or "failed" in seen.values() else "skipped" if "skipped" in seen.values() else "passed"
            for test, seen in steps.items()}


def _pytest(python: Path, folder: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(python), "-m", "pytest", "-c", os.devnull, f"--rootdir={folder}", *OPTIONS, *arguments], cwd=folder,
                          env=dict(environment), capture_output=True, text=True, timeout=ALL_S, check=False)
