"""What a Horovod wheel is built for: a torch, with or without CUDA. From that follow the C++ standard, packages, run path and key.

Pure: versions in, settings out. Looks at no machine and imports no torch; ``toolkit.py`` and ``backend.py`` do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT_TORCH = "2.15.0"  # a test compares it with the project's lock
TORCH_FIRST, TORCH_LAST = (2, 6), (2, 15)
PYTHON_FIRST, PYTHON_LAST = (3, 11), (3, 14)
CXX20_FROM = (2, 12)
"""From here on torch compiles its own extensions as C++20; older compilers do for the releases before."""
CUDA_OF_TORCH = {
    (2, 6): "12.4", (2, 7): "12.6", (2, 8): "12.8", (2, 9): "12.8", (2, 10): "12.8",
    (2, 11): "13.0", (2, 12): "13.0", (2, 13): "13.0", (2, 14): "13.0", (2, 15): "13.2",
}
"""The CUDA of the wheel that PyPI has of each release; another one's version says it (``2.8.0+cu126``)."""
COMPILER_ON_INDEX = {13: ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl")}
"""Packages that hold nvcc and its headers. For CUDA 12 there are none: nvidia-cuda-nvcc-cu12 holds ptxas, but no nvcc."""
CUDA_LIBRARIES = {12: "nvidia/cuda_runtime/lib", 13: "nvidia/cu13/lib"}
"""Where torch's own packages keep libcudart, by CUDA's major version."""


@dataclass(frozen=True)
class Target:
    """What one wheel is built for."""

    torch: str
    """Whole version, as ``torch.__version__`` says it: ``2.13.0+cu130``."""
    cuda: str | None
    """CUDA version that torch and Horovod are built for, e.g. ``13.0``; None for a Horovod without NCCL, which runs beside any torch
    of the release."""

    @classmethod
    def published(cls, asked: str, *, cpu_only: bool) -> Target:
        """The target of a torch that is still to come from a package index.

        Args:
            asked: ``2.13.0`` for the wheel on PyPI, ``2.13.0+cpu`` or ``2.13.0+cu126`` for one from torch's own index.
            cpu_only: Whether to build without NCCL, whatever torch can do.
        """
        version, _, tag = asked.partition("+")
        if not re.fullmatch(r"\d+\.\d+\.\d+", version) or not re.fullmatch(r"|cpu|cu\d{3}", tag):
            raise SystemExit(f"SPARKRING_HOROVOD_TORCH={asked} is not a version of torch as indexes have them; give one such as "
                             "2.8.0, 2.8.0+cpu or 2.8.0+cu126, or install yours and build with --no-build-isolation.")
        _require_tried(version)
        tag = tag or f"cu{CUDA_OF_TORCH[_release(version)].replace('.', '')}"
        cuda = None if tag == "cpu" or cpu_only else f"{tag[2:4]}.{tag[4:]}"
        return cls(f"{version}+{tag}", _known(cuda))

    @classmethod
    def installed(cls, version: str, cuda: str | None, *, cpu_only: bool) -> Target:
        """The target of a torch that is there, from its ``torch.__version__`` and ``torch.version.cuda``."""
        _require_tried(version)
        return cls(version, None if cpu_only else _known(cuda))

    @property
    def kind(self) -> str:
        """``cpu``, ``cu12`` or ``cu13``."""
        return "cpu" if self.cuda is None else f"cu{self.cuda_major}"

    @property
    def cuda_major(self) -> int:
        """CUDA's major version: libraries of one major version stand in for each other."""
        assert self.cuda is not None
        return int(self.cuda.partition(".")[0])

    @property
    def cxx_standard(self) -> int:
        """The C++ standard that torch's headers are read with."""
        return 20 if _release(self.torch) >= CXX20_FROM else 17

    @property
    def run_path(self) -> list[str]:
        """Where torch's own packages lie, seen from horovod/torch/ in site-packages."""
        libraries = ["torch/lib"] if self.cuda is None else ["torch/lib", "nvidia/nccl/lib", CUDA_LIBRARIES[self.cuda_major]]
        return [f"$ORIGIN/../../{library}" for library in libraries]

    def compiler_packages(self) -> list[str]:
        """Requirements of the CUDA compiler from the index: of torch's own minor version, whose headers torch brings."""
        if self.cuda is None:
            return []
        if self.cuda_major not in COMPILER_ON_INDEX:
            raise SystemExit(
                f"torch {self.torch} is built for CUDA {self.cuda}; no nvcc of CUDA {self.cuda_major} is here (CUDA_HOME, PATH, "
                "/usr/local/cuda), and the package index has none; install that CUDA toolkit and set CUDA_HOME, or set "
                "SPARKRING_HOROVOD_CPU=1 to build Horovod without NCCL.")
        major, minor = (int(part) for part in self.cuda.split(".")[:2])
        return [f"{package}>={major}.{minor},<{major}.{minor + 1}" for package in COMPILER_ON_INDEX[major]]

    def key(self, *, version: str, recipe: str, soabi: str) -> str:
        """The name that a finished wheel is kept under: all that decides what is in it.

        The whole version of torch is part of it because its build decides about C++ names: torch 2.6 has both ABIs of libstdc++.
        """
        return f"horovod-{version}-{recipe}-torch{self.torch}-{soabi}-{self.kind}"


def require_python(version: tuple[int, int]) -> None:
    """Refuse a Python that this recipe was not tried with."""
    if not PYTHON_FIRST <= version <= PYTHON_LAST:
        raise SystemExit(f"this is Python {_dotted(version)}, and Horovod's recipe is for {_dotted(PYTHON_FIRST)} to "
                         f"{_dotted(PYTHON_LAST)}; make an environment of one of these.")


def _require_tried(version: str) -> None:
    if not TORCH_FIRST <= _release(version) <= TORCH_LAST:
        raise SystemExit(f"this is torch {version}, and Horovod's recipe is for {_dotted(TORCH_FIRST)} to {_dotted(TORCH_LAST)}; "
                         "install one of these, or widen the range in third_party/horovod/target.py and run the tests.")


def _known(cuda: str | None) -> str | None:
    if cuda is not None and int(cuda.partition(".")[0]) not in CUDA_LIBRARIES:
        raise SystemExit(f"this torch is built for CUDA {cuda}, and Horovod's recipe is for CUDA {' and '.join(map(str, CUDA_LIBRARIES))}; "
                         "install a torch for one of these, or set SPARKRING_HOROVOD_CPU=1 to build Horovod without NCCL.")
    return cuda


def _release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
