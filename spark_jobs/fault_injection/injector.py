"""A rank that injects faults into itself when they are due: ``sparkring chaos`` runs it in place of ``train_rank``.

Ranks do it to themselves, since nothing else reaches them wherever they run; to the other ranks and to Spark it looks like a fault
from outside. Each fault is recorded in the run folder before it strikes, so it strikes once, even if its step is done again:

    <run>/chaos/<number>.json    a Strike
"""

from __future__ import annotations

import errno
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

from sparkring.errors import CommitConflict
from sparkring.pipelines.data.stores.base import Store, numbered
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.data.stores.pieces import Pieces
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.checkpoints.documents import CheckpointPart
from sparkring.pipelines.training.checkpoints.names import DATA
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.events.writer import EventWriter
from sparkring.spark_jobs.fault_injection.faults import DELAY_S, FAILED_WRITES, Fault, Kind, Strike

FOLDER = "chaos"


def train_rank_under_faults(context: RankContext, job: dict[str, Any], *, faults: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Run a rank of a training job that meets ``faults``; returns what ``train_rank`` does."""
    from sparkring.pipelines.training.train_rank import train_rank  # imports torch

    injector = FaultInjector([Fault.model_validate(fault) for fault in faults], open_store(job["run_url"]),
                             rank=context.rank, size=context.size, generation=job["generation"])
    return train_rank(context, job, files=FaultyRunFiles(injector))


def strikes(store: Store) -> list[Strike]:
    """The faults that have struck a run so far, by time."""
    found = [Strike.model_validate_json(store.read(f"{FOLDER}/{number}.json")) for number in numbered(store, FOLDER)]
    return sorted(found, key=lambda strike: strike.time)


class FaultInjector:
    """Injects the faults that are due on this rank."""

    def __init__(self, faults: Sequence[Fault], store: Store, *, rank: int, size: int, generation: int) -> None:
        """Keep those of ``faults`` that have not struck yet and that strike this rank, of ``size`` ranks."""
        struck = set(numbered(store, FOLDER))
        self._waiting = [fault for fault in faults if fault.number not in struck and fault.rank(size) == rank]
        self._store, self._rank, self._generation = store, rank, generation
        self._steps_per_epoch = self._total = self._done = 0
        self._failing = 0

    def hear(self, event: str, values: dict[str, Any]) -> None:
        """Arm the faults that are due after a record that this rank has just written."""
        if event == "start":
            self._steps_per_epoch = values["steps_per_epoch"]
            self._total = values["epochs"] * self._steps_per_epoch
        elif event == "step":
            self._done = values["epoch"] * self._steps_per_epoch + values["step"] + 1
            due = self._next_due(at_checkpoint=False)
            if due is not None:
                timer = threading.Timer(due.delay_s, self._strike, [due])
                timer.daemon = True
                timer.start()
        elif event == "checkpoint":
            due = self._next_due(at_checkpoint=True)
            if due is not None:
                self._strike(due)  # at once: while this checkpoint is the newest, the one that the next ring finds

    def require_space(self) -> None:
        """Check for space before a checkpoint's part is written.

        Raises:
            OSError: the disk is full, for now.
        """
        if self._failing:
            self._failing -= 1
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (on purpose)")

    def _next_due(self, *, at_checkpoint: bool) -> Fault | None:
        """Take the first fault that is due now."""
        due = next((fault for fault in self._waiting
                    if fault.due(self._total) <= self._done and (fault.kind == "corrupt") == at_checkpoint), None)
        if due is not None:
            self._waiting.remove(due)
        return due

    def _strike(self, fault: Fault) -> None:
        strike = Strike(number=fault.number, kind=fault.kind, rank=self._rank, host=socket.gethostname(), generation=self._generation,
                        steps=self._done, time=time.time())
        try:
            self._store.put_if_absent(f"{FOLDER}/{fault.number}.json", strike.model_dump_json().encode())
        except CommitConflict:
            return
        self._act(fault.kind)

    def _act(self, kind: Kind) -> None:
        if kind == "disk":
            self._failing = FAILED_WRITES
        elif kind == "delay":
            pause(os.getpid(), DELAY_S)
        elif kind == "worker":
            os.kill(int(os.environ.get("SPARKRING_TASK") or os.getppid()), signal.SIGKILL)
        elif kind == "suspend":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            if kind == "corrupt":
                damage_newest(self._store)
            os.kill(os.getpid(), signal.SIGKILL)


class FaultyRunFiles:
    """Opens a run's files so that the injector sees each event and can make checkpoints fail (train_rank.py's RunFiles)."""

    def __init__(self, injector: FaultInjector) -> None:
        self._injector = injector

    def events(self, run_url: str, *, generation: int, rank: int) -> EventWriter:
        """See RunFiles."""
        return _ObservedEvents(self._injector, run_url, generation=generation, rank=rank)

    def checkpoints(self, run_url: str) -> Checkpoints:
        """See RunFiles."""
        return _FailingCheckpoints(self._injector, run_url)


class _ObservedEvents(EventWriter):
    """Reports each record to the injector."""

    def __init__(self, injector: FaultInjector, run_url: str, *, generation: int, rank: int) -> None:
        super().__init__(run_url, generation=generation, rank=rank)
        self._injector = injector

    def write(self, event: str, **values: Any) -> None:
        super().write(event, **values)
        self._injector.hear(event, values)


class _FailingCheckpoints(Checkpoints):
    """Fails to write a part while the injector says that the disk is full."""

    def __init__(self, injector: FaultInjector, run_url: str) -> None:
        super().__init__(run_url)
        self._injector = injector

    def put_part(self, state: bytes | Pieces, *, steps: int, rank: int, generation: int = 0) -> CheckpointPart:
        self._injector.require_space()
        return super().put_part(state, steps=steps, rank=rank, generation=generation)


def pause(process: int, seconds: float) -> None:
    """Suspend a process for ``seconds``. It cannot wake itself, so a shell does."""
    subprocess.Popen(["sh", "-c", f"kill -STOP {process}; sleep {seconds}; kill -CONT {process}"], stdin=subprocess.DEVNULL)


def damage_newest(store: Store) -> str:
    """Flip one bit of the newest checkpoint's first part; returns the part's name, empty where there is no checkpoint yet."""
    checkpoints = Checkpoints(store.url)
    for number in checkpoints.numbers()[-1:]:
        for part in checkpoints.document(number).parts[:1]:
            name = f"{DATA}/{part.name}"
            data = bytearray(store.read(name))
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)  # noqa: S311 (nothing is secret here)
            store.put(name, bytes(data))
            return name
    return ""
