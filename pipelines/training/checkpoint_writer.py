"""Checkpoints beside training: a rank copies its part of the state in memory and trains on, a thread does the rest.

    loop       copy this rank's part (first waits for the checkpoint before this one, if it is still being written)
    thread     safetensors, hash, store; tell all ranks; rank 0 commits once it has heard of every part
    loop       hears how it went, some steps later

A part that cannot be stored costs its checkpoint, never the run: the one before stays as it is, and the loop hears why.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import torch
from safetensors.torch import save
from torch import Tensor

from sparkring.pipelines.parallel.communicator import Communicator
from sparkring.pipelines.training.checkpoint import CheckpointDocument, Checkpoints, Part

UPLOAD_DEADLINE_S = 1800.0
"""How long a rank waits for the others' parts, which may be large and their storage slow."""


@dataclass(frozen=True)
class Saved:
    """How writing a checkpoint went."""

    document: CheckpointDocument
    name: str
    """Of the committed document; empty where there is none, and on all ranks but 0."""
    held_up_s: float
    """Seconds that training stood still for it."""
    seconds: float
    """From its beginning to its end."""
    bytes: int = 0
    """Of all parts."""
    failure: str = ""
    """Why it was not committed."""


class CheckpointWriter:
    """Writes one rank's parts of checkpoints, one checkpoint at a time."""

    def __init__(self, checkpoints: Checkpoints, communicator: Communicator, *, keep: int) -> None:
        """``keep``: how many of the latest checkpoints stay, beside the best one."""
        self._checkpoints, self._communicator, self._keep = checkpoints, communicator, keep
        self._running: Future[Saved] | None = None
        self._unheard: list[Saved] = []
        self._copies: dict[str, Tensor] = {}

    def begin(self, part: Mapping[str, Tensor], document: CheckpointDocument) -> None:
        """Start to write a checkpoint; all ranks call it at the same step.

        Args:
            part: This rank's tensors of the state by name; they may change as soon as this returns.
            document: What rank 0 is to commit, without its parts.
        """
        began = time.perf_counter()
        self.finish()
        self._copies = {name: _copied(tensor, self._copies.get(name)) for name, tensor in part.items()}
        self._running = _in_background(partial(self._write, self._copies, document, began, time.perf_counter() - began))

    def heard(self) -> list[Saved]:
        """What has ended since this was asked last; waits for nothing."""
        if self._running is not None and self._running.done():
            self.finish()
        unheard, self._unheard = self._unheard, []
        return unheard

    def finish(self) -> None:
        """Wait until nothing is being written."""
        if self._running is not None:
            self._unheard.append(self._running.result())
            self._running = None

    def _write(self, tensors: Mapping[str, Tensor], document: CheckpointDocument, began: float, held_up_s: float) -> Saved:
        """In the thread."""
        name = failure = ""
        parts: tuple[Part, ...] = ()
        try:
            parts = self._exchange(self._put(tensors, document), document.position.steps_done)
            if self._communicator.context.rank == 0:
                name = self._checkpoints.commit(document.model_copy(update={"parts": parts}))
                self._checkpoints.retain(self._keep)
        except Exception as error:  # noqa: BLE001 (whatever storage or network say: a checkpoint is no reason to end the run)
            failure = f"{type(error).__name__}: {error}"
        return Saved(document, name, held_up_s, time.perf_counter() - began, sum(part.bytes for part in parts), failure)

    def _put(self, tensors: Mapping[str, Tensor], document: CheckpointDocument) -> dict[str, object]:
        """Store this rank's part; what to tell the others: the part, or why there is none."""
        try:
            part = self._checkpoints.put_part(save(dict(tensors)), steps=document.position.steps_done,
                                              rank=self._communicator.context.rank) if tensors else None
        except Exception as error:  # noqa: BLE001 (the others are to hear it, whatever it is)
            return {"failure": f"rank {self._communicator.context.rank}: {type(error).__name__}: {error}"}
        return {"part": part and part.model_dump()}

    def _exchange(self, mine: dict[str, object], steps: int) -> tuple[Part, ...]:
        """All ranks' parts.

        Raises:
            OSError: some rank could not store its part.
        """
        told = [json.loads(each) for each in self._communicator.gather_bytes(
            json.dumps(mine).encode(), name=f"checkpoint.{steps}", deadline_s=UPLOAD_DEADLINE_S)]
        failures = [each["failure"] for each in told if "failure" in each]
        if failures:
            raise OSError("; ".join(failures))
        return tuple(Part.model_validate(each["part"]) for each in told if each["part"])


def _in_background(work: Callable[[], Saved]) -> Future[Saved]:
    """Run ``work``, which raises nothing, in a thread that does not keep a rank alive whose ring has failed."""
    future: Future[Saved] = Future()
    threading.Thread(target=lambda: future.set_result(work()), name="sparkring-checkpoint", daemon=True).start()
    return future


def _copied(tensor: Tensor, used: Tensor | None) -> Tensor:
    """A copy on the CPU, in the memory of the copy before where that fits: fresh pages cost more than the copying."""
    if used is None or used.shape != tensor.shape or used.dtype != tensor.dtype:
        used = torch.empty(tensor.shape, dtype=tensor.dtype)
    return used.copy_(tensor)
