"""The running Python with all its libraries as one archive that runs from any folder, for nodes without them.

    sparkring pack environment.tar

    bin/python             a script that finds the libraries and starts the interpreter
    bin/python3.11         the interpreter
    lib/                   the shared library of the interpreter, if it has one
    lib/python3.11/        the standard library, and site-packages without sparkring, which is part of each submission

A virtual environment refers to the Python it was made from by absolute paths, so an archive of it alone runs on this machine only. CPython
finds its standard library beside its program, wherever that is, so this archive runs anywhere.
Source: https://docs.python.org/3.11/library/sys_path_init.html, https://spark.apache.org/docs/4.0.0/api/python/tutorial/python_packaging.html
"""

from __future__ import annotations

import io
import sys
import sysconfig
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path

from sparkring.errors import ConfigError, EnvironmentProblem
from sparkring.output_file import require_writable_file

MODES = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz"}
"""File endings that YARN unpacks."""
LEFT_OUT = ("site-packages", "dist-packages", "test", "config-")
"""Name prefixes in the standard library's folder: packages installed outside the environment, and files that only builds need."""
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
STARTER = f"""#!/bin/sh
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
export LD_LIBRARY_PATH="$here/../lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
exec "$here/{VERSION}" "$@"
"""


def pack(archive: Path, *, linked: Collection[str] = ()) -> Path:
    """Write the archive, completely or not at all.

    Args:
        archive: Its name ends in ``.tar``, ``.tar.gz`` or ``.tgz``. Compressing the 6 GB that torch brings takes minutes.
        linked: Folders and files in site-packages that all nodes have at the same path as this machine; the archive only links them.
    Returns:
        ``archive``.
    Raises:
        ConfigError: another ending, which YARN would not unpack; or the archive cannot be written.
        EnvironmentProblem: this is Conda's Python, whose libraries are elsewhere.
    """
    mode = next((mode for ending, mode in MODES.items() if archive.name.endswith(ending)), None)
    if mode is None:
        raise ConfigError(f"{archive} ends in none of {', '.join(MODES)}, so YARN would not unpack it; name it e.g. environment.tar.")
    if (Path(sys.base_prefix) / "conda-meta").is_dir():
        raise EnvironmentProblem(f"{sys.base_prefix} is Conda's, which keeps libraries elsewhere; use conda-pack, "
                                 "or install Python and the wheels without Conda.")
    require_writable_file(archive)
    partial = archive.with_name(f".{archive.name}.part")
    options = {"compresslevel": 1} if mode == "w:gz" else {}
    try:
        with tarfile.open(partial, mode, **options) as tar:  # type: ignore[call-overload]  # the mode is not known beforehand
            _add_interpreter(tar)
            for entry in _installed():
                _add_installed(tar, entry, linked=entry.name in linked)
        partial.replace(archive)
    finally:
        partial.unlink(missing_ok=True)
    return archive


def _add_interpreter(tar: tarfile.TarFile) -> None:
    starter = tarfile.TarInfo("bin/python")
    starter.mode, starter.size = 0o755, len(STARTER)
    tar.addfile(starter, io.BytesIO(STARTER.encode()))
    tar.add(Path(sys.executable).resolve(), f"bin/{VERSION}")
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        folders = (sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib")  # the first is the folder of its build
        files = [Path(folder, sysconfig.get_config_var("INSTSONAME")) for folder in folders]
        library = next((file for file in files if file.is_file()), None)
        if library is not None:  # Debian's interpreter needs none
            tar.add(library, f"lib/{library.name}")
    for entry in sorted(Path(sysconfig.get_path("stdlib")).iterdir()):
        if not entry.name.startswith(LEFT_OUT):
            tar.add(entry, f"lib/{VERSION}/{entry.name}")
    _add_link(tar, f"lib/{VERSION}/dist-packages", "site-packages")  # where Debian's Python looks


def _installed() -> Iterator[Path]:
    """All of site-packages except sparkring and the files of an editable installation of it."""
    for folder in sorted({Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib"))}):
        for entry in sorted(folder.iterdir()):
            if "sparkring" not in entry.name and not entry.name.startswith("__editable__") and entry.name != "__pycache__":
                yield entry


def _add_installed(tar: tarfile.TarFile, entry: Path, *, linked: bool) -> None:
    name = f"lib/{VERSION}/site-packages/{entry.name}"
    if not linked:
        tar.add(entry, name)
        return
    _add_link(tar, name, str(entry))


def _add_link(tar: tarfile.TarFile, name: str, target: str) -> None:
    link = tarfile.TarInfo(name)
    link.type, link.linkname = tarfile.SYMTYPE, target
    tar.addfile(link)
