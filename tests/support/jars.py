"""Jars that only tests need: fetched from Maven Central once, checked, and kept under ~/.cache/sparkring/jars."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from pathlib import Path

CENTRAL = "https://repo1.maven.org/maven2"
FOLDER = Path.home() / ".cache/sparkring/jars"
JARS = {  # path at Maven Central -> SHA-256
    "io/delta/delta-spark_2.13/4.0.1/delta-spark_2.13-4.0.1.jar": "a1e76860b19fe1e6b205a4ea7a9099a2f9575d39bb71d49b3e679b299d0efb91",
    "io/delta/delta-storage/4.0.1/delta-storage-4.0.1.jar": "ecc42c5aaa51c423312d9e4e48aa4a12b34740bf2c37de0e8f279277ec3d12e4",
    "org/apache/iceberg/iceberg-spark-runtime-4.0_2.13/1.10.2/iceberg-spark-runtime-4.0_2.13-1.10.2.jar":
        "7124a5da756f69c815f3f778691167ed00dfd813dde2c26025278aa35f35abb8",
    "org/apache/spark/spark-avro_2.13/4.0.2/spark-avro_2.13-4.0.2.jar": "fd102b6c6754f72f53a01ac882f0da2b1a6f9f02127647ac3e1f0ca951d4433b",
    "com/h2database/h2/2.4.240/h2-2.4.240.jar": "29b70e427cc1c40cdc376283adbb0cc62853073797bb5fe5761f81fe73d57ce0",
}


def table_jars() -> list[Path]:
    """Delta, Iceberg, Avro and the database H2, fetched where they do not lie here yet."""
    return [_fetched(path, sha256) for path, sha256 in JARS.items()]


def _fetched(path: str, sha256: str) -> Path:
    target = FOLDER / path.rpartition("/")[2]
    if not target.is_file():
        try:
            with urllib.request.urlopen(f"{CENTRAL}/{path}", timeout=60) as answer:
                data: bytes = answer.read()
        except (urllib.error.URLError, TimeoutError) as error:
            raise AssertionError(f"{target.name} is not in {FOLDER} and cannot be fetched from {CENTRAL}: {error}") from error
        FOLDER.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".part")
        partial.write_bytes(data)
        partial.replace(target)
    found = hashlib.sha256(target.read_bytes()).hexdigest()
    assert found == sha256, f"{target} has SHA-256 {found}, expected {sha256}; remove it"
    return target
