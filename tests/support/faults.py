"""A disk that fails at the n-th act: what this process does to files is counted, and stopped where a test says.

    with Faults() as seen: commit()                      seen.acts == ["mkdir", "create", "write", "fsync", "link", ...]
    with Faults(at=7, how="error"): commit()             the 7th act fails with ENOSPC, later ones work: a full disk
    with Faults(at=7, how="dead"): commit()              the 7th act and all after it fail: what a killed process leaves
    with Faults(at=7, how="exit"): commit()              the process really ends there (run it in one of its own)

A write that is stopped has got half of its bytes out. Acts are calls of ``os`` and writes of files opened by ``open``: all of
Python's ways to change a file end in these. What C++ (pyarrow) or a JVM writes is not seen.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Literal, Self
from unittest.mock import patch

CALLS = ("mkdir", "link", "unlink", "remove", "rename", "replace", "rmdir", "fsync")
EXIT_CODE = 66


class Faults:
    """Counts acts on files while it is entered, and fails at one of them."""

    def __init__(self, *, at: int | None = None, how: Literal["error", "dead", "exit"] = "error") -> None:
        self.acts: list[str] = []
        """What was done, in order; the one that failed is the last counted before any clean-up."""
        self._at, self._how = at, how
        self._patches = ExitStack()

    @property
    def struck(self) -> bool:
        """The fault has happened."""
        return self._at is not None and len(self.acts) > self._at

    def __enter__(self) -> Self:
        for name in CALLS:
            self._patches.enter_context(patch.object(os, name, self._counted(name, getattr(os, name))))
        opening = self._opening(io.open)
        self._patches.enter_context(patch.object(io, "open", opening))
        self._patches.enter_context(patch.object(builtins, "open", opening))
        self._patches.enter_context(patch("shutil._USE_CP_SENDFILE", new=False))  # so that copies go through write, too
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._patches.close()

    def act(self, name: str, *, half: Callable[[], object] = lambda: None) -> None:
        """Count one act and, where it is to fail, do ``half`` of it and raise, or end the process."""
        number = len(self.acts)
        self.acts.append(name)
        if self._at is None or number < self._at or (number > self._at and self._how == "error"):
            return
        if number == self._at:
            half()
        if self._how == "exit":
            os._exit(EXIT_CODE)
        raise OSError(errno.ENOSPC, f"injected at act {number} ({name})")

    def _counted(self, name: str, call: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.act(name)
            return call(*args, **kwargs)

        return counted

    def _opening(self, real: Any) -> Any:
        def opening(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if not set(mode) & set("wxa+"):
                return real(file, mode, *args, **kwargs)
            self.act("create")
            opened = real(file, mode, *args, **kwargs)
            return _File(opened, self)

        return opening


class _File:
    """A file opened for writing whose writes are acts."""

    def __init__(self, file: Any, faults: Faults) -> None:
        self._file, self._faults = file, faults

    def write(self, data: Any) -> int:
        """Write all of it, or, where this act fails, half."""
        self._faults.act("write", half=lambda: self._tear(data))
        return int(self._file.write(data))

    def _tear(self, data: Any) -> None:
        self._file.write(data[:len(data) // 2])
        self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
