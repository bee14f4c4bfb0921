"""Files of Maven Central: fetched once, checked, and kept under ~/.cache/sparkring/jars.

Python fetches them, since Ivy would ask Maven Central each time, and by a Java that may not trust the network's certificates.
"""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MAVEN = os.environ.get("SPARKRING_MAVEN", "https://repo1.maven.org/maven2")
"""Maven Central, or a mirror of it."""
FOLDER = Path.home() / ".cache/sparkring/jars"


def fetched(jars: Mapping[str, str]) -> list[Path]:
    """Jars by path at Maven Central and SHA-256, in that order; those that do not lie here yet are fetched."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(_fetched, jars, jars.values()))


def _fetched(path: str, sha256: str) -> Path:
    target = FOLDER / path.rpartition("/")[2]
    if not target.is_file():
        try:
            with urllib.request.urlopen(f"{MAVEN}/{path}", timeout=60) as answer:
                data: bytes = answer.read()
        except (urllib.error.URLError, TimeoutError) as error:
            raise AssertionError(f"{target.name} is not in {FOLDER} and cannot be fetched from {MAVEN}: {error}") from error
        FOLDER.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}.part")
        partial.write_bytes(data)
        partial.replace(target)
    found = hashlib.sha256(target.read_bytes()).hexdigest()
    assert found == sha256, f"{target} has SHA-256 {found}, expected {sha256}; remove it"
    return target
