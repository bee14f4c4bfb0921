"""The CUDA toolkit and NCCL that Horovod is compiled against: the machine's, or one put together from the package index.

Knows folders and nvcc; what to ask the index for is ``target.py``'s.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from target import Target

ARCHITECTURES = "75,80,90"  # T4, A100, H100 / H200; newer ones run the embedded PTX


def machine_toolkit(target: Target) -> Path | None:
    """The CUDA toolkit of this machine (CUDA_HOME, nvcc on PATH, /usr/local/cuda) if its major version is torch's; else None."""
    on_path = shutil.which("nvcc")
    homes = [os.environ.get("CUDA_HOME"), Path(on_path).resolve().parent.parent if on_path else None, "/usr/local/cuda"]
    return next((home for home in map(Path, filter(None, homes)) if _major_version(home / "bin" / "nvcc") == target.cuda_major), None)


def cuda_environment(target: Target, *, site: Path, work: Path) -> dict[str, str]:
    """Variables with which Horovod's CMake files find nvcc, CUDA and NCCL.

    Args:
        target: Built with CUDA.
        site: The folder that torch is installed in, its own CUDA packages beside it.
        work: For the folders that are put together.
    """
    toolkit = machine_toolkit(target) or _from_index(target, site=site, folder=work / "cuda")
    library_path = os.pathsep.join(filter(None, [str(toolkit / "lib64"), os.environ.get("LIBRARY_PATH", "")]))
    return _nccl_environment(site / "nvidia" / "nccl", work / "nccl") | {
        "HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_CUDA_HOME": str(toolkit), "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_BUILD_CUDA_CC_LIST": ARCHITECTURES, "CUDA_HOME": str(toolkit), "CUDAToolkit_ROOT": str(toolkit),
        "CUDACXX": str(toolkit / "bin" / "nvcc"), "LIBRARY_PATH": library_path,
    }


def _major_version(nvcc: Path) -> int | None:
    if not nvcc.exists():
        return None
    told = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"release (\d+)\.", told)
    return int(found.group(1)) if found else None


def _from_index(target: Target, *, site: Path, folder: Path) -> Path:
    """Lay out the index's packages as CMake and nvcc expect a toolkit."""
    cuda = site / "nvidia" / f"cu{target.cuda_major}"
    if not (cuda / "bin" / "nvcc").exists():
        raise SystemExit(
            f"there is no nvcc of CUDA {target.cuda_major} on this machine (CUDA_HOME, PATH, /usr/local/cuda) and none under {cuda}; "
            f"install one ({' '.join(target.compiler_packages())} beside torch, or a CUDA toolkit and set CUDA_HOME), or set "
            "SPARKRING_HOROVOD_CPU=1 to build Horovod without NCCL.")
    lib64 = folder / "lib64"
    lib64.mkdir(parents=True)
    shutil.copytree(cuda / "bin", folder / "bin")  # a real copy: nvcc follows links to find its own home
    for name in ("include", "nvvm"):
        (folder / name).symlink_to(cuda / name)
    for library in (cuda / "lib").iterdir():
        (lib64 / library.name).symlink_to(library)
    if not (lib64 / "libcudart.so").exists():
        (lib64 / "libcudart.so").symlink_to(cuda / "lib" / f"libcudart.so.{target.cuda_major}")
    return folder


def _nccl_environment(nccl: Path, folder: Path) -> dict[str, str]:
    """Torch's own NCCL under the name that a linker looks for; where torch brings none, CMake looks on the machine."""
    if not (nccl / "include" / "nccl.h").is_file():
        return {}
    (folder / "lib").mkdir(parents=True)
    (folder / "include").symlink_to(nccl / "include")
    for name in ("libnccl.so", "libnccl.so.2"):
        (folder / "lib" / name).symlink_to(nccl / "lib" / "libnccl.so.2")
    return {"HOROVOD_NCCL_HOME": str(folder)}
