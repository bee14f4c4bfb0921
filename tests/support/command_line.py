"""The command line in this process; a test module names this one in ``pytest_plugins`` and asks for ``run``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeAlias

import pytest
from typer.testing import CliRunner

from sparkring import __main__ as cli
from sparkring.cli.app import app

Run: TypeAlias = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``sparkring`` with these arguments; returns exit code, stdout and stderr."""
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sparkring", *arguments])
        code = exit_code()
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def exit_code() -> int:
    """Run the command line of ``sys.argv`` to its end."""
    try:
        cli.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def said(*arguments: str) -> str:
    """What a command, in the Spark session that is open, says on stdout; it has to end well."""
    ended = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.stdout
