"""PEP 517 backend: build the published Horovod 0.28.1 so that it runs beside today's torch.

Takes the sdist from the package index or from a file, checks its SHA-256, changes what ``source.py`` lists, and builds one wheel with
Gloo and NCCL that serves machines with and without a GPU. The CUDA compiler is the machine's, or comes from the index.

    uv sync                                              # builds it once, into the project's environment
    uv build --wheel --out-dir dist third_party/horovod  # leaves the wheel in dist/ (what `make wheels` does)
    pip install --no-build-isolation --no-deps --force-reinstall ./third_party/horovod  # for the torch of this environment

Building takes about three minutes on two cores; a finished wheel is kept, and the next build of the same kind copies it.
README.md explains the variables: SPARKRING_HOROVOD_TORCH, SPARKRING_HOROVOD_CPU, SPARKRING_HOROVOD_SDIST, SPARKRING_WHEEL_CACHE.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from source import VERSION, unpack_source
from target import DEFAULT_TORCH, Target, require_python
from toolkit import cuda_environment, machine_toolkit

BUILD_TOOLS = ["setuptools>=77,<81", "packaging", "cmake>=3.26,<4"]  # the published sdist declares nothing of what its setup.py needs

Settings = dict[str, str | list[str]] | None  # what a frontend may pass to a hook; none is read here


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """PEP 517 hook: nothing where the wheel is kept from before, else torch, the build tools and the CUDA compiler."""
    require_python(sys.version_info[:2])
    asked = _asked_torch() or DEFAULT_TORCH
    target = Target.published(asked, cpu_only=_cpu_only())
    if _kept_wheel(target) is not None:
        return []
    _require_compiler()  # before gigabytes are fetched for a build that cannot be
    compiler = target.compiler_packages() if target.cuda and machine_toolkit(target) is None else []
    fetcher = [] if os.environ.get("SPARKRING_HOROVOD_SDIST") else ["pip"]
    return [*BUILD_TOOLS, *fetcher, f"torch=={asked}", *compiler]


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """PEP 517 hook: leave Horovod's wheel in ``wheel_directory`` and return its file name."""
    require_python(sys.version_info[:2])
    torch = _torch_folder()
    target = Target.published(_asked_torch() or DEFAULT_TORCH, cpu_only=_cpu_only()) if torch is None else _target_of(torch)
    wheel = _kept_wheel(target) or _build_and_keep(target, torch)
    shutil.copyfile(wheel, Path(wheel_directory) / wheel.name)
    return wheel.name


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """PEP 517 hook that has no meaning here: the published sdist is the source."""
    raise RuntimeError("third_party/horovod only builds wheels; Horovod's sdist is the one on the package index.")


def _asked_torch() -> str:
    return os.environ.get("SPARKRING_HOROVOD_TORCH", "")


def _cpu_only() -> bool:
    return os.environ.get("SPARKRING_HOROVOD_CPU", "") not in ("", "0")


def _torch_folder() -> Path | None:
    """The folder of this interpreter's torch; None in a build environment that needed none, because a wheel was kept."""
    found = importlib.util.find_spec("torch")
    return Path(found.origin).parent if found and found.origin else None


def _target_of(torch: Path) -> Target:
    """The target of this interpreter's torch, which must be the one that was asked for, if one was. Imports nothing of it."""
    facts, asked = runpy.run_path(str(torch / "version.py")), _asked_torch()
    version = facts["__version__"]
    if asked not in ("", version, version.partition("+")[0]):
        raise SystemExit(f"SPARKRING_HOROVOD_TORCH={asked}, but {sys.executable} has torch {version}; unset the variable to build "
                         "Horovod for that one, or leave out --no-build-isolation to have the other fetched for the build.")
    return Target.installed(version, facts["cuda"], cpu_only=_cpu_only())


def _kept_wheel(target: Target) -> Path | None:
    return next(_keep_folder(target).glob("horovod-*.whl"), None)


def _keep_folder(target: Target) -> Path:
    """Where the finished wheel of this recipe, Python and target is kept."""
    root = os.environ.get("SPARKRING_WHEEL_CACHE") or str(Path.home() / ".cache" / "sparkring" / "wheels")
    files = sorted(Path(__file__).parent.glob("*.py"))
    recipe = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    return Path(root) / target.key(version=VERSION, recipe=recipe, soabi=sysconfig.get_config_var("SOABI"))


def _build_and_keep(target: Target, torch: Path | None) -> Path:
    _require_compiler()
    _require_build_tools(torch)
    assert torch is not None
    with tempfile.TemporaryDirectory(prefix="horovod-build-") as work:
        built = _build(target, site=torch.parent, work=Path(work))
        kept = _keep_folder(target) / built.name
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
        python = "python{}.{}".format(*sys.version_info[:2])
        raise SystemExit(
            f"Horovod is built from source and Python's headers are missing (no {include / 'Python.h'}); install them "
            f"(Debian, Ubuntu: `apt-get install {python}-dev`; RHEL: `dnf install {python}-devel`) and run this again.")


def _require_build_tools(torch: Path | None) -> None:
    """Without build isolation nobody has installed what ``get_requires_for_build_wheel`` names."""
    there = {"torch": torch, "setuptools>=70.1": _is_installed("setuptools.command.bdist_wheel"), "packaging": _is_installed("packaging"),
             "cmake": shutil.which("cmake", path=_path()), "pip": os.environ.get("SPARKRING_HOROVOD_SDIST") or _is_installed("pip")}
    missing = [name for name, found in there.items() if not found]
    if missing:
        raise SystemExit(f"building Horovod without isolation uses what {sys.executable} has, and it lacks {', '.join(missing)}; install "
                         "that there, or leave out --no-build-isolation. (With SPARKRING_HOROVOD_SDIST no pip is needed.)")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def _build(target: Target, *, site: Path, work: Path) -> Path:
    source = unpack_source(target, work)
    cores = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(len(os.sched_getaffinity(0)))
    env = dict(os.environ) | {
        "HOROVOD_WITH_PYTORCH": "1", "HOROVOD_WITHOUT_TENSORFLOW": "1", "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1", "HOROVOD_WITHOUT_MPI": "1", "MAKEFLAGS": f"-j{cores}", "PATH": _path(),
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # CMake 4 of the machine: Gloo's files say 2.8
    }
    if target.cuda is not None:
        env |= cuda_environment(target, site=site, work=work)
    finished = work / "finished"
    finished.mkdir()
    # Horovod has no pyproject.toml: setuptools' backend for such sources builds it, and installs nothing.
    build = f"from setuptools.build_meta import __legacy__; __legacy__.build_wheel({str(finished)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, env=env)
    (wheel,) = finished.glob("horovod-*.whl")
    return wheel


def _path() -> str:
    """PATH, with the programs of this interpreter's environment first."""
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
