"""What tests must know of the cell of versions that they run in: the checkout's own, or another (harness/cell_tests.py)."""

from __future__ import annotations

import psutil
import pyspark
import pytest
import torch

from sparkring.spark_jobs.spark.versions.supported import java_versions, minor

JAVAS = java_versions(pyspark.__version__)
RUNS_ON = " or ".join(", ".join(map(str, JAVAS)).rsplit(", ", 1))
"""``17 or 21``."""
needs_connect = pytest.mark.skipif(minor(pyspark.__version__) < (4, 0), reason="Spark Connect is taken from Spark 4.0 on")
needs_simulated_gpu = pytest.mark.skipif(
    minor(torch.__version__) < (2, 7), reason="torch 2.6 asks for a driver to copy tensors that only say they are on a GPU")


def listening_on(port: int) -> list[str]:
    """The addresses at which this process listens on a port."""
    process = psutil.Process()
    found = process.net_connections("tcp") if hasattr(process, "net_connections") else process.connections("tcp")  # psutil 5
    return [connection.laddr.ip for connection in found if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port]
