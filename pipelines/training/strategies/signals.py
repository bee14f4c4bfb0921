"""What ranks tell each other with every step, beside the loss: whether to stop, to save, or to wait with that.

Each rank says 0 or 1, the sums reach all of them in the same step, so all do the same after it, without an exchange of their own.

    asked to stop   by SIGTERM (a machine that is taken away), or on rank 0 by a document that the driver puts into the run folder
    time to save    on rank 0: by its clock, or by the steps since the last one (checkpoints/pace.py)
    still writing   the checkpoint before: the next one is begun once it is there
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Self

from sparkring.errors import SparkringError
from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.local import LocalStore
from sparkring.pipelines.data.stores.open import open_store

FOLDER = "control"
LOOK_S, LOOK_REMOTE_S = 0.5, 1.0
"""Seconds between two looks into the run folder: on a disk, and where each look is a request."""


@dataclass(frozen=True)
class Signals:
    """One rank's votes, or the sums of all ranks' votes."""

    stop: float = 0.0
    save: float = 0.0
    writing: float = 0.0


def stop_name(generation: int) -> str:
    """The document that asks a generation to stop."""
    return f"{FOLDER}/stop-{generation}.json"


def claim_name(generation: int) -> str:
    """The document by which one driver, and no other, has that number for a generation."""
    return f"{FOLDER}/begun-{generation}.json"


def ask_to_stop(store: Store, generation: int) -> None:
    """Have a generation save and end after the step that it is in."""
    store.put(stop_name(generation), b"{}\n")


class SignalSource:
    """This rank's votes. Use as a context manager."""

    def __init__(self, run_url: str, *, generation: int, rank: int, save_every_s: float | None) -> None:
        """Listen from the beginning of the block on.

        Args:
            run_url: The run's folder.
            generation: Of the ring.
            rank: Only rank 0 looks into the folder and at the clock.
            save_every_s: Seconds between two checkpoints, if time counts.
        """
        self._store, self._name, self._speaks = open_store(run_url), stop_name(generation), rank == 0
        self._look_s = LOOK_S if isinstance(self._store, LocalStore) else LOOK_REMOTE_S
        self._save_every_s, self._saved = save_every_s, time.monotonic()
        self._asked, self._closed = threading.Event(), threading.Event()
        self._before: Callable[[int, FrameType | None], object] | int | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, lambda *_: self._asked.set())
        if self._speaks:
            threading.Thread(target=self._look, name="sparkring-signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def now(self, *, due: bool = False, writing: bool = False) -> Signals:
        """What this rank says in the step that begins.

        Args:
            due: Whether the steps since the last checkpoint ask for one after this step; only rank 0 is heard.
            writing: Whether it is still writing a checkpoint.
        """
        due = due or (self._save_every_s is not None and time.monotonic() - self._saved >= self._save_every_s)
        return Signals(stop=float(self._asked.is_set()), save=float(self._speaks and due), writing=float(writing))

    def saved(self) -> None:
        """A checkpoint has been begun: its time counts from now on."""
        self._saved = time.monotonic()

    def _look(self) -> None:
        while not self._closed.wait(self._look_s) and not self._asked.is_set():
            try:
                if self._store.size(self._name) is not None:
                    self._asked.set()
            except (OSError, SparkringError):
                continue  # the storage is away for a while: the next look may find it
