"""MLflow's own server with a database in a file, on loopback; and what it holds of a run.

    with mlflow_server(folder) as uri: ...
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from sparkring.spark_jobs.spark.progress import SilentProgress
from tests.support.daemons import daemon
from tests.support.tcp import LOOPBACK, held_ports

QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "PYTHONWARNINGS": "ignore"}


START_S = 180.0
"""It makes its database in some 50 migrations, and imports much, twice."""


class Notes(SilentProgress):
    """Keeps what a job notes."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def note(self, text: str) -> None:
        """Keep one line."""
        self._lines.append(text)

    @property
    def of_tracking(self) -> list[str]:
        """Those of tracking."""
        return [line for line in self._lines if line.startswith("tracking: ")]


@contextmanager
def mlflow_server(folder: Path, *, port: int | None = None) -> Iterator[str]:
    """Run the server for the length of the block; yields its address. Its database and artifacts are in ``folder``.

    Args:
        folder: An empty one, or that of an earlier server.
        port: One that the caller holds (``held_ports``). None takes any.
    """
    with held_ports(1) as [spare]:
        uri = f"http://{LOOPBACK}:{port or spare}"
        command: list[str | Path] = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db",
                   "--artifacts-destination", folder / "artifacts", "--host", LOOPBACK, "--port", str(port or spare), "--workers", "1"]
        with daemon(command, log=folder / "mlflow.log", environment=QUIET) as server:
            server.until(lambda: _is_healthy(uri), what="answer", within_s=START_S)
            yield uri


def client_of(uri: str) -> Any:
    """MLflow's client."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


def history(uri: str, run_id: str, metric: str) -> list[tuple[int, float]]:
    """(step, value) of each time that a metric was logged, by step."""
    return sorted((each.step, each.value) for each in client_of(uri).get_metric_history(run_id, metric))


def _is_healthy(uri: str) -> bool | None:
    with suppress(URLError, OSError), urlopen(f"{uri}/health", timeout=5) as answer:
        return answer.status == 200 or None
    return None
