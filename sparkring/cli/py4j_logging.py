"""What Py4J logs of a JVM that was lost, kept off a command's console: it raises each such failure as well, and that is told in one line.

It logs from whichever thread was waiting for the JVM, so its traceback could come after that line and hide it.
"""

from __future__ import annotations

import logging

_MODULES = ("java_gateway", "clientserver")


def silence_py4j() -> None:
    """For a process whose logging is ours, as a command's is; in a notebook it is the user's."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)  # it also logs as the root logger


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return record.module not in _MODULES
