"""Keep Py4J and PySpark from printing that the JVM is lost: each such failure is also raised, and reported in one line.

Both print from a thread, so their tracebacks could come after that line and hide it. A notebook's logging is the user's own: only the
command line calls this.
"""

from __future__ import annotations

import logging
import socketserver
import sys
from typing import Any

_PY4J_MODULES = ("java_gateway", "clientserver")
_ACCUMULATORS = "pyspark.accumulators"
"""The module of the server by which PySpark reads from the JVM; it prints a traceback when the JVM is gone."""


def silence_lost_jvm() -> None:
    """Keep Py4J and PySpark's accumulator server from printing that the JVM was lost; for this whole process."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)  # it also logs as the root logger
    socketserver.BaseServer.handle_error = _handle_error  # type: ignore[method-assign, assignment]


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return record.module not in _PY4J_MODULES


_print_traceback = socketserver.BaseServer.handle_error


def _handle_error(server: socketserver.BaseServer, request: Any, client_address: Any) -> None:
    lost = isinstance(sys.exc_info()[1], OSError | EOFError)
    if not (lost and type(server).__module__ == _ACCUMULATORS):
        _print_traceback(server, request, client_address)
