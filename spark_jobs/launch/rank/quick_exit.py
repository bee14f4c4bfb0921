"""The end of a rank's process: whatever is registered to be done at exit is done, but the interpreter is not taken apart.

Beside torch, Python takes 0.3 s to free its modules and objects, and the task waits for it (docs/log). The kernel frees them at once.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys


class QuickExit:
    """Ends this process once its work is done. A process that ends in another way ends as Python does it.

    Make it before the imports: functions registered at exit are called in reverse order, so those of the imports are called before.
    A function that ``sitecustomize`` has registered is not called.
    """

    def __init__(self) -> None:
        self.done = False
        """Whether the work is done, and the exit code 0."""
        atexit.register(self._leave)

    def _leave(self) -> None:
        if self.done:
            flush_output()
            os._exit(0)


def flush_output() -> None:
    """Write out what Python and C have buffered."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
