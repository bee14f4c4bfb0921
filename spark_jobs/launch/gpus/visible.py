"""The GPUs that this process could use, found without starting CUDA: the driver needs none, and ranks may be forked off it.

    CUDA_VISIBLE_DEVICES=2,GPU-8932f937    2, GPU-8932f937     as given
    not set                                0, 1, 2, 3          what `nvidia-smi -L` lists

Each is a value for a rank's own ``CUDA_VISIBLE_DEVICES``.
Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#env-vars, CUDA_VISIBLE_DEVICES
"""

from __future__ import annotations

import os
import re
import subprocess
from itertools import takewhile

from sparkring.errors import EnvironmentProblem

VARIABLE = "CUDA_VISIBLE_DEVICES"
TIMEOUT_S = 60.0
"""Seconds for nvidia-smi, which takes some where a driver has to be loaded first."""
_DEVICE = re.compile(r"\d+|(GPU|MIG)-\S+")
_GPU_LINE = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[^)]+)\)")
_MIG_LINE = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")


def visible_gpus() -> tuple[str, ...]:
    """The GPUs of this machine that this process could use; none if it has no NVIDIA driver.

    Raises:
        EnvironmentProblem: the driver's own program does not work.
    """
    named = os.environ.get(VARIABLE)
    return listed_gpus(_nvidia_smi()) if named is None else named_gpus(named)


def named_gpus(value: str) -> tuple[str, ...]:
    """The GPUs that a value of ``CUDA_VISIBLE_DEVICES`` names, each once, up to the first entry that CUDA would not take for one."""
    return tuple(dict.fromkeys(takewhile(_DEVICE.fullmatch, (entry.strip() for entry in value.split(",")))))


def listed_gpus(text: str) -> tuple[str, ...]:
    """The GPUs in the output of ``nvidia-smi -L``.

    Numbers where no GPU is partitioned (MIG), since CUDA's 0 is the fastest; else names, and of each partitioned GPU the first part:
    NCCL refuses two parts of one GPU.
    """
    gpus: dict[str, str] = {}
    parts: dict[str, str] = {}
    number = ""
    for line in text.splitlines():
        if gpu := _GPU_LINE.match(line):
            number = gpu.group(1)
            gpus[number] = gpu.group(2)
        elif part := _MIG_LINE.match(line):
            parts.setdefault(number, part.group(1))
    return tuple(parts.get(number, name) for number, name in gpus.items()) if parts else tuple(gpus)


def _nvidia_smi() -> str:
    """What ``nvidia-smi -L`` prints; empty without one."""
    try:
        ended = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
                               process_group=0)  # a terminal's Ctrl-C is for this process to handle
    except FileNotFoundError:
        return ""
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentProblem(f"nvidia-smi does not answer ({error}); repair the NVIDIA driver, or name the GPUs in {VARIABLE}."
                                 ) from error
    if ended.returncode:
        said = " ".join(f"{ended.stdout} {ended.stderr}".split())[:300]
        raise EnvironmentProblem(f"nvidia-smi -L ended with code {ended.returncode}: {said.rstrip('.')}; repair the NVIDIA driver, or name "
                                 f"the GPUs in {VARIABLE}.")
    return ended.stdout
