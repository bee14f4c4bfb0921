"""What the tests of forked ranks run on a rank: looks at all that a process may have from the one it was forked off."""

from __future__ import annotations

import atexit
import ctypes
import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from sparkring.pipelines.parallel.context import RankContext

LEFT: list[str] = []
"""State of a module, as a careless function leaves it."""


def look(context: RankContext) -> dict[str, Any]:
    """Tell of this process, and leave things behind for the next one to find."""
    import numpy as np
    import torch

    with tempfile.NamedTemporaryFile() as scratch:
        pass
    found = {
        "parent": os.getppid(), "name": Path("/proc/self/comm").read_text(encoding="ascii").strip(),
        "left": [*LEFT, os.environ.get("LEFT_BEHIND", "")],
        "drawn": [torch.initial_seed(), random.random(), float(np.random.random()), Path(scratch.name).name,  # noqa: NPY002 (what is global is shared)
                  bytes(multiprocessing.current_process().authkey).hex()],
        "same": {
            "threads": [len(list(Path("/proc/self/task").iterdir())), threading.active_count()],
            "torch_threads": torch.get_num_threads(), "cuda": torch.cuda.is_initialized(), "folder": str(Path.cwd()), "gc": gc.isenabled(),
            "stdin": sys.stdin.read(), "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
            "signals": [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP)],
            "wakeup": signal.set_wakeup_fd(-1), "daemon": multiprocessing.current_process().name,
            "files": open_files(),
            "environment": {name: value for name, value in os.environ.items() if name != "SPARKRING_TOKEN"},
        },
    }
    LEFT.append("a list that grew")
    os.environ["LEFT_BEHIND"] = "a variable"
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 (see above)
    torch.manual_seed(1)
    return found


def open_files() -> list[str]:
    """Kinds of what this process holds open: ``pipe``, ``/dev/null``, ..."""
    links = [Path("/proc/self/fd", str(fd)) for fd in range(64)]  # listed, the list itself would be among them
    return sorted(str(link.readlink()).partition(":")[0] for link in links if link.exists())


def open_files_of(context: RankContext) -> list[str]:
    """Kinds of what a rank holds open."""
    return open_files()


def end_as_told(context: RankContext, how: str) -> None:
    """Start processes that would go on for ever, say so, and end, or never; who ends has a daemon, too, with a child of its own."""
    subprocess.Popen(["sleep", "600"])
    if how != "never":
        subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True)
    sys.stdout.write("my last words\n")
    sys.stdout.flush()
    if how == "exit":
        sys.exit(3)
    if how == "SIGSEGV":
        os.kill(os.getpid(), signal.SIGSEGV)
    signal.pause()


def say_at_exit(_: RankContext) -> None:
    """Write, by Python and by C, to buffers that nobody empties but the end of the process, also from a function called at exit."""
    atexit.register(sys.stdout.write, "called at exit\n")
    sys.stdout.reconfigure(line_buffering=False, write_through=False)  # type: ignore[union-attr]
    sys.stdout.write("said by Python\n")
    ctypes.CDLL(None).printf(b"said by C\n")


def has_imported(_: RankContext, module: str) -> bool:
    """Whether this rank has that module loaded."""
    return module in sys.modules
