"""Whether the installed Horovod was built for the installed torch.

Horovod's library is compiled against one release of torch, and beside another its import fails or ends the process. So neither is
imported here: Horovod's build leaves the version in its ``metadata.json``, and torch has its own in a module ``version``.
"""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import socket
import sys
from pathlib import Path

from sparkring.errors import EnvironmentProblem


def fits(built_for: str, kind: str | None, *, version: str, cuda: str | None, built_abi: str | None = None, abi: str | None = None) -> bool:
    """Whether a library built for one torch can be loaded beside another.

    Args:
        built_for: ``torch.__version__`` when Horovod was built. Its first two numbers decide: a patch release keeps the interfaces.
        kind: ``cpu``, ``cu12`` or ``cu13`` if third_party/horovod built it; a Horovod for CPUs uses none of torch's CUDA libraries.
        version: ``torch.__version__`` here.
        cuda: ``torch.version.cuda`` here.
        built_abi: libstdc++'s ABI of the torch that Horovod was built for: ``TRUE`` is the new one; None in an older wheel.
        abi: That of torch here; None if its files do not say. torch 2.6 has builds of both.
    """
    if built_for.split(".")[:2] != version.split(".")[:2] or (built_abi and abi and built_abi != abi):
        return False
    return kind in (None, "cpu") or kind == f"cu{(cuda or 'none').partition('.')[0]}"


def require_fitting_horovod() -> None:
    """Refuse a Horovod that was built for another torch. What cannot be found out is left to the import.

    Raises:
        EnvironmentProblem: it names both versions and the command that builds Horovod again.
    """
    horovod, torch = _folder("horovod"), _folder("torch")
    if horovod is None or torch is None:
        return
    try:
        built, here = json.loads((horovod / "metadata.json").read_text(encoding="utf-8")), runpy.run_path(str(torch / "version.py"))
        built_for, version, cuda = str(built["pytorch"]), str(here["__version__"]), here["cuda"]
    except (OSError, ValueError, LookupError, TypeError):
        return
    if not fits(built_for, built.get("kind"), version=version, cuda=cuda, built_abi=built.get("cxx11_abi"), abi=_cxx11_abi(torch)):
        raise EnvironmentProblem(f"Horovod was built for torch {built_for}, but {sys.executable} on {socket.gethostname()} has torch "
                                 f"{version}; build it for that "
                                 f"one: in a checkout of sparkring, `{rebuild_command(cpu_only=built.get('kind') == 'cpu')}`.")


def rebuild_command(*, cpu_only: bool) -> str:
    """The command that builds Horovod for the torch of this interpreter, with NCCL or not, and installs it there."""
    if importlib.util.find_spec("pip"):
        install = f"{sys.executable} -m pip install --force-reinstall"
    else:
        install = f"uv pip install --python {sys.executable} --reinstall"
    return f"{'SPARKRING_HOROVOD_CPU=1 ' * cpu_only}{install} --no-build-isolation --no-deps ./third_party/horovod"


def _cxx11_abi(torch: Path) -> str | None:
    """As CMake says it, from the file by which torch tells CMake how to compile against it."""
    try:
        found = re.search(r"_GLIBCXX_USE_CXX11_ABI=([01])", (torch / "share/cmake/Torch/TorchConfig.cmake").read_text(encoding="utf-8"))
    except OSError:
        return None
    return ("FALSE", "TRUE")[int(found.group(1))] if found else None


def _folder(package: str) -> Path | None:
    found = importlib.util.find_spec(package)
    return Path(found.origin).parent if found and found.origin else None
