"""Names in shared memory that killed ranks leave behind: the next ring removes them, and no others."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparkring.pipelines.parallel.shared_memory.named_files import PENDING, create_locked, remove_abandoned, segment_path, socket_path
from tests.support import seams

RANK = """
import socket, sys, time
from pathlib import Path
from sparkring.pipelines.parallel.shared_memory import named_files
named_files.FOLDER = Path(sys.argv[1])
handle = named_files.create_locked(named_files.segment_path(sys.argv[2], 0), 1 << 16)
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(str(named_files.socket_path(sys.argv[2], 0)))
print("named", flush=True)
time.sleep(600)
"""
"""A rank that waits for its peers to open what it has named."""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In place of /dev/shm; its name is short, as that of a socket must be."""
    with tempfile.TemporaryDirectory(prefix="shm") as name:
        monkeypatch.setattr(seams.NAMED_FILES_FOLDER, Path(name))
        yield Path(name)


@contextmanager
def _rank(folder: Path, token: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", RANK, str(folder), token], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "named\n"
        try:
            yield process
        finally:
            process.kill()


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_names_of_a_killed_rank_are_removed_and_those_of_a_living_one_are_not(folder: Path) -> None:
    living, killed = sorted(secrets.token_hex(16) for _ in range(2))
    with _rank(folder, living), _rank(folder, killed) as doomed:
        of_living, of_killed = ([segment_path(token, 0).name, socket_path(token, 0).name] for token in (living, killed))
        remove_abandoned()
        assert _names(folder) == [*of_living, *of_killed], "both live"
        doomed.send_signal(signal.SIGKILL)
        doomed.wait()
        assert _names(folder) == [*of_living, *of_killed], "the control: the kernel removes no names"
        remove_abandoned()
        assert _names(folder) == of_living


def test_files_that_no_rank_has_named_are_left_alone(folder: Path) -> None:
    token = secrets.token_hex(16)
    others = [f"sparkring-{token}-store", f"sparkring-{token}-0.txt", f"sem.sparkring-{token}-0", "sparkring-0-0"]
    for name in others:
        (folder / name).touch()
    (folder / f"sparkring-{token}-1").symlink_to(folder / others[0])
    (folder / f"sparkring-{token}-2").mkdir()
    before = _names(folder)
    remove_abandoned()
    assert _names(folder) == before


def test_another_user_s_files_are_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = segment_path(secrets.token_hex(16), 0)
    path.touch()
    user = os.getuid()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getuid", lambda: user + 1)
        remove_abandoned()
    assert path.exists()
    remove_abandoned()
    assert not path.exists(), "the control: it is this user's, and nobody holds it"


def test_a_file_that_is_about_to_be_locked_is_removed_only_when_it_is_old(folder: Path) -> None:
    path = segment_path(secrets.token_hex(16), 0)
    pending = path.with_name(path.name + PENDING)
    pending.touch()
    remove_abandoned()
    assert pending.exists()
    os.utime(pending, (0, 0))
    remove_abandoned()
    assert not pending.exists()


def test_a_name_that_is_taken_or_memory_that_is_not_there_gives_no_file_and_leaves_nothing(folder: Path) -> None:
    path = segment_path(secrets.token_hex(16), 0)
    assert create_locked(path, 1 << 60) is None
    assert _names(folder) == []
    first = create_locked(path, 64)
    assert first is not None
    assert create_locked(path, 64) is None
    assert _names(folder) == [path.name]
    os.close(first)


def test_a_listening_socket_is_not_disturbed_by_being_asked(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        path = socket_path(secrets.token_hex(16), 0)
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(0)
        remove_abandoned()
        assert path.exists()
        with pytest.raises(BlockingIOError):
            listener.accept()
