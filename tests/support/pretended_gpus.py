"""GPUs that are not there, as the programs tell of them that a machine with GPUs has: nvidia-smi, and Spark's discovery script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

TWO = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-c6d4f1ef-42e4-3b3a-a0f7-8a2ff1a4f1f5)
"""


def nvidia_smi(folder: Path, listing: str, *, code: int = 0) -> Path:
    """Write an ``nvidia-smi`` that prints ``listing`` and ends with ``code``; returns the folder for ``PATH``."""
    return _program(folder / "bin" / "nvidia-smi", f"test \"$*\" = -L || exit 2\ncat <<'END'\n{listing.rstrip()}\nEND\nexit {code}").parent


def discovery_script(folder: Path, addresses: Sequence[str]) -> Path:
    """Write a script that tells Spark of GPUs with these addresses."""
    return _program(folder / "discover.sh", f"echo '{json.dumps({'name': 'gpu', 'addresses': list(addresses)})}'")


def _program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="ascii")
    path.chmod(0o755)
    return path
