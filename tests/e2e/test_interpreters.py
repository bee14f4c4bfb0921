"""CPython out of Maven Central, for machines that have one version of Python: an environment made with it works."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.interpreters import JARS, from_maven, interpreter

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

SOURCE = """
#include <Python.h>
static struct PyModuleDef one = {PyModuleDef_HEAD_INIT, "one", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_one(void) { return PyModule_Create(&one); }
"""


def run(*command: str | Path, cwd: Path) -> str:
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, timeout=300).stdout.strip()


@pytest.mark.parametrize("version", JARS)
def test_an_environment_has_pip_and_tls_and_loads_what_is_compiled_with_its_headers(version: str, tmp_path: Path) -> None:
    python = tmp_path / "env/bin/python"
    run(from_maven(version), "-m", "venv", "env", cwd=tmp_path)
    assert run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])", cwd=tmp_path) == version
    assert f"(python {version})" in run(python, "-m", "pip", "--version", cwd=tmp_path)
    run(python, "-c", "import ssl; assert ssl.create_default_context().get_ca_certs() is not None", cwd=tmp_path)
    include, suffix = run(python, "-c", "import sysconfig as s; print(s.get_path('include'), s.get_config_var('EXT_SUFFIX'))",
                          cwd=tmp_path).split()
    (tmp_path / "one.c").write_text(SOURCE, encoding="ascii")
    run("gcc", "-shared", "-fPIC", f"-I{include}", "one.c", "-o", f"one{suffix}", cwd=tmp_path)
    assert run(python, "-c", "import one; print(one.__name__)", cwd=tmp_path) == "one"


def test_a_program_on_path_that_does_not_run_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pyenv's are where no version of theirs is chosen."""
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\nexit 127\n", encoding="ascii")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert interpreter("3.12") != shim
