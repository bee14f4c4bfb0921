"""Where a run keeps its exported file."""

from __future__ import annotations

FOLDER, SUFFIX = "export", ".onnx"
FILE = f"model{SUFFIX}"
