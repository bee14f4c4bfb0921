"""The archive of a Python that runs from any folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from sparkring.errors import ConfigError, EnvironmentProblem
from sparkring.spark_jobs.submission.pack import VERSION, pack

INSTALLED = {entry.name: entry for entry in Path(sysconfig.get_path("purelib")).iterdir()}


def test_a_packed_python_runs_from_another_folder_on_what_came_along(tmp_path: Path) -> None:
    archive = pack(tmp_path / "not/there/environment.tar", linked=INSTALLED.keys() - {"typer"})
    (tmp_path / "first").mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path / "first"], check=True, timeout=60)
    shutil.move(tmp_path / "first", tmp_path / "moved")
    home = tmp_path / "moved"
    code = ("import sys, os, json, ssl, sqlite3, ctypes, typer, numpy\n"
            "print(sys.prefix, sys.base_prefix, json.__file__, os.path.realpath(typer.__file__), numpy.ones(2).sum(), sep='\\n')\n"
            "print(*[name for name in sys.modules if name.startswith('sparkring')])\n"
            "import sparkring")
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME"}}
    ended = subprocess.run([home / "bin/python", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60,
                           check=False)
    assert ended.stdout.splitlines() == [str(home), str(home), str(home / f"lib/{VERSION}/json/__init__.py"),
                                         str(home / f"lib/{VERSION}/site-packages/typer/__init__.py"), "2.0", ""], ended.stderr
    assert "No module named 'sparkring'" in ended.stderr, "that one goes along with each submission"
    assert [entry.name for entry in archive.parent.iterdir()] == ["environment.tar"]


def test_what_yarn_would_not_unpack_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"environment\.tar\.xz ends in none of \.tar, \.tar\.gz, \.tgz"):
        pack(tmp_path / "environment.tar.xz")


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/environment\.tar cannot be written: .*; name a file in a folder that can be written"):
        pack(tmp_path / "file/environment.tar")


def test_a_python_of_conda_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conda-meta").mkdir()
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match="use conda-pack"):
        pack(tmp_path / "environment.tar")
