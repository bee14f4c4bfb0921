"""A rank that strikes itself when a fault is due: the work of ``sparkring chaos``, in place of ``train_rank``.

Ranks do it to themselves, since nobody else reaches them wherever they run; to the others, and to Spark, it looks as if it had come
from outside. What has struck is noted in the run folder first, so it strikes once however often its step is done again:

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
from unittest.mock import patch

from sparkring.errors import CommitConflict
from sparkring.pipelines.data.stores.base import Store, numbered
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.parallel.context import RankContext
from sparkring.pipelines.training.checkpoints.documents import CheckpointPart
from sparkring.pipelines.training.checkpoints.names import DATA
from sparkring.pipelines.training.checkpoints.store import Checkpoints
from sparkring.pipelines.training.events.writer import EventWriter
from sparkring.spark_jobs.fault_injection.faults import DELAY_S, FAILED_WRITES, Fault, Kind, Strike

FOLDER = "chaos"


def train_rank_under_faults(context: RankContext, job: dict[str, Any], *, faults: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Be a rank of a training job that meets ``faults``; returns what ``train_rank`` does."""
    from sparkring.pipelines.training import train_rank as loop  # brings torch

    injector = FaultInjector([Fault.model_validate(fault) for fault in faults], open_store(job["run_url"]),
                             rank=context.rank, size=context.size, generation=job["generation"])

    class Overheard(EventWriter):
        """Tells the injector of each record too."""

        def write(self, event: str, **values: Any) -> None:
            super().write(event, **values)
            injector.hear(event, values)

    put_part = Checkpoints.put_part

    def put_where_there_is_space(checkpoints: Checkpoints, *args: Any, **named: Any) -> CheckpointPart:
        injector.require_space()
        return put_part(checkpoints, *args, **named)

    with patch.object(loop, "EventWriter", Overheard), patch.object(Checkpoints, "put_part", put_where_there_is_space):
        return loop.train_rank(context, job)


def strikes(store: Store) -> list[Strike]:
    """What has struck a run so far, by time."""
    found = [Strike.model_validate_json(store.read(f"{FOLDER}/{number}.json")) for number in numbered(store, FOLDER)]
    return sorted(found, key=lambda strike: strike.time)


class FaultInjector:
    """Knows the faults that this rank has to suffer, and makes them."""

    def __init__(self, faults: Sequence[Fault], store: Store, *, rank: int, size: int, generation: int) -> None:
        """Only those of ``faults`` that have not struck yet, and that strike this rank of so many, are looked at."""
        struck = set(numbered(store, FOLDER))
        self._waiting = [fault for fault in faults if fault.number not in struck and fault.rank(size) == rank]
        self._store, self._rank, self._generation = store, rank, generation
        self._steps_per_epoch = self._total = self._done = 0
        self._failing = 0

    def hear(self, event: str, values: dict[str, Any]) -> None:
        """Take note of a record that this rank has just written, and arm what is due."""
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
                self._strike(due)  # at once: this checkpoint is the newest now, and will be what the next ring finds

    def require_space(self) -> None:
        """Where a checkpoint's part is about to be written.

        Raises:
            OSError: the disk is full, for now.
        """
        if self._failing:
            self._failing -= 1
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (on purpose)")

    def _next_due(self, *, at_checkpoint: bool) -> Fault | None:
        """The first fault that is due now; it is not given again."""
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
        elif kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            if kind == "corrupt":
                damage_newest(self._store)
            os.kill(os.getpid(), signal.SIGKILL)


def pause(process: int, seconds: float) -> None:
    """Have a process stand still for so long; it cannot wake itself, so a shell does."""
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
