"""What all tests share: one thread a process (ranks share few cores), short-lived JVMs, and the marker that each folder implies."""

from __future__ import annotations

import gc
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import class_archive

TESTS = Path(__file__).parent
MARKED_FOLDERS = {"parallel", "cluster", "spark", "e2e"}

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")  # before torch or numpy is imported, here and in every process that a test starts

# A test's JVM lives for seconds. The second compiler and a collector's threads take half of its time and never pay that back (measured:
# a session and three prepares 22 s of processor time in place of 46).
os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {class_archive.options()}".strip())


settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any load")  # how long an example takes says nothing on a busy machine


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test in tests/spark is marked ``spark``, and so on: no test can forget it. Nightly tests run only where ``-m`` asks for them."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in MARKED_FOLDERS:
            item.add_marker(folder)
    if "nightly" not in config.option.markexpr:
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if item not in nightly]


def pytest_collection_finish() -> None:
    """Leave what collecting has made out of every later collection of garbage, and collect seldom: tests are short."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how long each folder's tests took, so that growth is seen."""
    seconds: Counter[str] = Counter()
    for report in (one for reports in terminalreporter.stats.values() for one in reports if isinstance(one, pytest.TestReport)):
        seconds["/".join(Path(report.location[0]).parts[:2])] += report.duration  # type: ignore[assignment]  # a Counter counts floats too
    terminalreporter.section("seconds a folder")
    for folder, taken_s in seconds.most_common():
        terminalreporter.line(f"{folder:20} {taken_s:8.0f} s")
