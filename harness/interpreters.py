"""Real CPythons of several versions, without root: one that the machine has, else one out of Maven Central.

    interpreter("3.12")    .../bin/python3.12

Maven Central has CPython as jars of org.bytedeco:cpython. Once unpacked it needs neither PYTHONHOME nor LD_LIBRARY_PATH; venv, pip, ssl
and ctypes work and its headers compile extensions. It asks for glibc 2.30, from 3.13 on for 2.35. Its 3.11 lacks lzma and sqlite3, so that
version must be on the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

from harness.maven import fetched

KEPT = Path.home() / ".cache/sparkring/pythons"
JARS = {  # minor version -> path at Maven Central, SHA-256
    "3.12": ("org/bytedeco/cpython/3.12.1-1.5.10/cpython-3.12.1-1.5.10-linux-x86_64.jar",
             "a135fcf4dc01adebf7ea439252276fc3196db80f7e0dd3da0b61f1ec489b68bd"),
    "3.13": ("org/bytedeco/cpython/3.13.5-1.5.12/cpython-3.13.5-1.5.12-linux-x86_64.jar",
             "50ad91aa0baa57f0235bb666b87d8bf2a44e215d28c250de1030502906af143b"),
    "3.14": ("org/bytedeco/cpython/3.14.3-1.5.13/cpython-3.14.3-1.5.13-linux-x86_64.jar",
             "eb5f1a6fe2dc498ac18927189a37f28a47b0ba06ae6bd85112eff023fe2eb46f"),
}
PROBE = """
import bz2, ctypes, lzma, pathlib, sqlite3, ssl, sys, sysconfig, venv
sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1] or not pathlib.Path(sysconfig.get_path("include"), "Python.h").is_file())
"""
"""Ends with 0 in an interpreter of that version with all that an environment and a compiled extension need."""


def interpreter(version: str) -> Path:
    """A whole CPython of a minor version: on PATH, of pyenv (whose programs on PATH need not run), or fetched."""
    return next((python for python in _of_machine(version) if _is_whole(python, version)), None) or from_maven(version)


def from_maven(version: str) -> Path:
    """The CPython of Maven Central, unpacked under ``KEPT`` unless it is there."""
    folder = KEPT / version
    python = folder / "bin" / f"python{version}"
    if version not in JARS:
        raise AssertionError(f"this machine has no whole CPython {version}, and Maven Central has {', '.join(JARS)}; install it.")
    if not python.is_file():
        path, sha256 = JARS[version]
        (jar,) = fetched({path: sha256})
        partial = folder.with_name(f"{version}.{os.getpid()}.part")
        _unpack(jar, partial, version)
        try:
            partial.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(partial)
    if not _is_whole(python, version):
        raise AssertionError(f"{python} does not run here; it needs Linux on x86-64 and glibc 2.35 or later.")
    return python


def _of_machine(version: str) -> Iterator[Path]:
    found = shutil.which(f"python{version}")
    if found:
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"), reverse=True)


def _is_whole(python: Path, version: str) -> bool:
    ended = subprocess.run([python, "-c", PROBE, version], capture_output=True, timeout=60, check=False)
    return ended.returncode == 0


def _unpack(jar: Path, folder: Path, version: str) -> None:
    """Lay a jar's CPython out in ``folder``: links and modes are not kept in a jar."""
    inside = "org/bytedeco/cpython/linux-x86_64/"
    with zipfile.ZipFile(jar) as content:
        content.extractall(folder / "jar", [name for name in content.namelist() if name.startswith(inside)])
    for part in (folder / "jar" / inside).iterdir():
        part.rename(folder / part.name)
    shutil.rmtree(folder / "jar")
    for program in (folder / "bin").iterdir():
        program.chmod(0o755)
    (folder / f"libpython{version}.so").symlink_to(f"libpython{version}.so.1.0")  # what an extension links against
    (folder / f"lib/libpython{version}.so.1.0").hardlink_to(folder / f"libpython{version}.so.1.0")  # where it lies in others
    for library in folder.glob("libffi.so.[0-9]"):  # _ctypes looks for it beside itself
        (folder / f"lib/python{version}/lib-dynload" / library.name).hardlink_to(library)
