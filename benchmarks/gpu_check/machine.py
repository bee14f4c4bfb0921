"""Facts of the machine, as one JSON object: ``python -m benchmarks.gpu_check.machine DEVICE``. Exit code 1: the device is not usable.

A process of its own, because a broken CUDA may end the process that first uses it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from typing import Any

PACKAGES = ("torch", "horovod", "sparkring", "numpy", "pyarrow", "pandas", "pydantic", "safetensors", "setuptools")


def main() -> int:
    """Print the facts."""
    device = sys.argv[1]
    facts: dict[str, Any] = {
        "python": platform.python_version(), "system": platform.platform(), "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        **{name: version for name in PACKAGES if (version := _version(name))},
        **{name: said for name, command in TOOLS.items() if (said := _said(command))}}
    problem = _add_gpu(facts) if device == "cuda" else ""
    print(json.dumps(facts | {"problem": problem}))
    return 1 if problem else 0


TOOLS = {
    "driver": ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_mode,mig.mode.current", "--format=csv,noheader"],
    "nvcc": ["nvcc", "--version"], "g++": ["g++", "--version"], "cmake": ["cmake", "--version"]}


def _add_gpu(facts: dict[str, Any]) -> str:
    """Add torch's view of the GPU; returns the reason that it cannot be used, or an empty text."""
    try:
        import torch

        facts["cuda"], facts["cudnn"] = torch.version.cuda, torch.backends.cudnn.version()
        properties = torch.cuda.get_device_properties(0)
        facts["gpu"], facts["gpu_mb"] = properties.name, properties.total_memory >> 20
        facts["compute_capability"] = f"{properties.major}.{properties.minor}"
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        if float(torch.ones(8, 8, device="cuda:0").mm(torch.ones(8, 8, device="cuda:0")).sum()) != 512:
            return "a product of two small matrices is wrong"
    except (ImportError, RuntimeError, AssertionError, AttributeError) as error:
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return ""


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 (a file of the kernel)
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _said(command: list[str]) -> str:
    """What a tool says of itself, in a line; nvcc's release stands in its fourth."""
    if not shutil.which(command[0]):
        return ""
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout.strip()
    release = re.search(r"release .*", said)
    return release.group(0) if release else said.partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
