"""Votes that ranks exchange with the loss of every step: whether to stop, to save, or to postpone saving.

Each rank votes 0 or 1. The sums reach all ranks in the same step, so all act alike after it, without a separate exchange.

    stop       by SIGTERM (the machine is taken away), or on rank 0 by a document that the driver puts into the run folder
    save       on rank 0: by its clock, or by the steps since the last checkpoint (checkpoints/pace.py)
    writing    a rank still writes the last checkpoint: the next one starts once that has ended
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
"""Seconds between two looks into the run folder: on a disk, and on remote storage, where each look is a request."""


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
    """The document by which a single driver claims the number of a generation."""
    return f"{FOLDER}/begun-{generation}.json"


def ask_to_stop(store: Store, generation: int) -> None:
    """Ask a generation to save and end after its current step."""
    store.put(stop_name(generation), b"{}\n")


class SignalSource:
    """This rank's votes. Use as a context manager."""

    def __init__(self, run_url: str, *, generation: int, rank: int, save_every_s: float | None) -> None:
        """Open the run folder; listen once the block is entered.

        Args:
            run_url: The run's folder.
            generation: The ring's.
            rank: Only rank 0 watches the folder and the clock.
            save_every_s: Seconds between two checkpoints; None if only steps count.
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
        """This rank's votes in the step that begins.

        Args:
            due: Whether a checkpoint is due after this step, by the steps since the last one; only rank 0's counts.
            writing: Whether this rank still writes a checkpoint.
        """
        due = due or (self._save_every_s is not None and time.monotonic() - self._saved >= self._save_every_s)
        return Signals(stop=float(self._asked.is_set()), save=float(self._speaks and due), writing=float(writing))

    def saved(self) -> None:
        """Restart the clock: a checkpoint has begun."""
        self._saved = time.monotonic()

    def _look(self) -> None:
        while not self._closed.wait(self._look_s) and not self._asked.is_set():
            try:
                if self._store.size(self._name) is not None:
                    self._asked.set()
            except (OSError, SparkringError):
                continue  # storage is away for a while: the next look may find the document
