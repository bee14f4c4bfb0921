"""The Python that runs this, with all libraries it has, as one archive that runs from any folder: for nodes that have none.

    sparkring pack environment.tar

    bin/python             says where the libraries lie, and starts the interpreter
    bin/python3.11         the interpreter
    lib/                   the library that it was linked with, if that is one of its own
    lib/python3.11/        the standard library, and all that is installed in site-packages; but sparkring goes along with each submission

A virtual environment points at the Python that it was made from, by absolute paths, so an archive of it alone runs on this machine only.
CPython finds its standard library beside its program wherever that lies, which makes this archive as good as it is short.
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

MODES = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz"}
"""Endings by which YARN knows what to unpack."""
LEFT_OUT = ("site-packages", "dist-packages", "test", "config-")
"""Beginnings of names in the standard library's folder: what is installed beside the environment, and what only building it needs."""
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
STARTER = f"""#!/bin/sh
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
export LD_LIBRARY_PATH="$here/../lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
exec "$here/{VERSION}" "$@"
"""


def pack(archive: Path, *, linked: Collection[str] = ()) -> Path:
    """Write the archive; it is there whole or not at all.

    Args:
        archive: Its name ends in ``.tar``, ``.tar.gz`` or ``.tgz``. Compressing the 6 GB that torch brings takes minutes.
        linked: Folders and files in site-packages that all nodes have at the same path as this machine: only links go in.
    Returns:
        ``archive``.
    Raises:
        ConfigError: another ending, which YARN would not unpack.
        EnvironmentProblem: this Python is one of Conda's, whose libraries have other places.
    """
    mode = next((mode for ending, mode in MODES.items() if archive.name.endswith(ending)), None)
    if mode is None:
        raise ConfigError(f"{archive} ends in none of {', '.join(MODES)}, so YARN would not unpack it; name it environment.tar, for one.")
    if (Path(sys.base_prefix) / "conda-meta").is_dir():
        raise EnvironmentProblem(f"{sys.base_prefix} is Conda's, which keeps libraries in places of its own; use conda-pack, "
                                 "or install Python and the wheels without Conda.")
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
        folders = (sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib")  # the first says where it was built
        files = [Path(folder, sysconfig.get_config_var("INSTSONAME")) for folder in folders]
        library = next((file for file in files if file.is_file()), None)
        if library is not None:  # Debian's interpreter does without
            tar.add(library, f"lib/{library.name}")
    for entry in sorted(Path(sysconfig.get_path("stdlib")).iterdir()):
        if not entry.name.startswith(LEFT_OUT):
            tar.add(entry, f"lib/{VERSION}/{entry.name}")
    _add_link(tar, f"lib/{VERSION}/dist-packages", "site-packages")  # where Debian's Python looks


def _installed() -> Iterator[Path]:
    """All of site-packages but sparkring, and what an editable installation of it left there."""
    for folder in sorted({Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib"))}):
        for entry in sorted(folder.iterdir()):
            if not entry.name.startswith(("sparkring", "__editable__")) and entry.name != "__pycache__":
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
