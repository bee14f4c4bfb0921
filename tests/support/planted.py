"""Secrets planted in a job's environment, and a look at all that it writes, says and shows in the list of processes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.attackers import command_lines

PLANTED = {name: f"planted-{name.lower()}-7f3a" for name in (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "SHOP_USER", "SHOP_PASSWORD", "DATABRICKS_TOKEN")}
LOOK_EVERY_S = 0.25


@contextmanager
def watched(pid: int) -> Iterator[set[str]]:
    """The command lines of a process and its descendants, added to while the block runs."""
    seen: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_EVERY_S):
            seen.update(command_lines(pid).splitlines())

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join(30)


def secrets_found(*, said: str, shown: Iterable[str], folder: Path) -> set[tuple[str, str]]:
    """Names of planted secrets that are somewhere, each with where: in the output, the list of processes, or a file of the folder."""
    texts = {"output": said.encode(), "process list": "\n".join(shown).encode(),
             **{str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}}
    return {(name, where) for name, secret in PLANTED.items() for where, data in texts.items() if secret.encode() in data}
