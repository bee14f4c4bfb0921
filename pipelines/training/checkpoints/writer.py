"""Checkpoints beside training: a rank copies its part of the state in memory and trains on, a thread does the rest.

    loop       copy this rank's part from its device (first waits for the checkpoint before this one, if it is still being written)
    thread     hash and store it, and this rank's events so far; report to all ranks; rank 0 commits once it knows every part
    loop       gets the result some steps later

A part that cannot be stored costs its checkpoint, never the run: the one before stays as it is, and the loop gets the reason. The parts
of a failed checkpoint are deleted, so that a full disk does not fill further. A commit that is refused because a later generation has
begun is another matter (``Saved.superseded``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sparkring.errors import Superseded
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.keepalive import in_thread
from sparkring.pipelines.parallel.shared_memory.exchange import open_exchange
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument, CheckpointPart
from sparkring.pipelines.training.checkpoints.safetensors_pieces import safetensors_pieces
from sparkring.pipelines.training.checkpoints.store import Checkpoints

UPLOAD_DEADLINE_S = 1800.0
"""Seconds that a rank waits for the others' parts, which may be large and their storage slow."""


@dataclass(frozen=True)
class Saved:
    """The result of writing a checkpoint."""

    document: CheckpointDocument
    name: str
    """Name of the committed document; empty if there is none, and on all ranks but 0."""
    held_up_s: float
    """Seconds that training waited for it."""
    seconds: float
    """Seconds from its beginning to its end."""
    steps: int = 0
    """Optimizer steps that were done meanwhile."""
    bytes: int = 0
    """Bytes of all parts."""
    failure: str = ""
    """The reason that it was not committed, as far as this rank knows: only rank 0 knows of the commit itself."""
    untidy: str = ""
    """The reason that older ones could not be deleted."""
    superseded: Superseded | None = None
    """On rank 0, the refusal because a later generation has begun: this one is over."""


class CheckpointWriter:
    """Writes one rank's parts of checkpoints, one checkpoint at a time."""

    def __init__(self, checkpoints: Checkpoints, communicator: Communicator, *, keep: int,
                 settle: Callable[[], None] = lambda: None, steps_done: Callable[[], int] = lambda: 0) -> None:
        """Write nothing yet.

        Args:
            checkpoints: The run's checkpoints.
            communicator: The ring; all ranks make their writer at the same point.
            keep: Number of latest checkpoints that stay, in addition to the best one.
            settle: Puts this rank's events into storage, which a commit requires; raises OSError if it cannot.
            steps_done: Returns the optimizer steps that this rank has done by now.
        """
        self._steps_done = steps_done
        self._checkpoints, self._communicator, self._keep, self._settle = checkpoints, communicator, keep, settle
        self._beside = open_exchange(communicator)
        self._running: Future[Saved] | None = None
        self._began = 0.0
        self._unheard: list[Saved] = []
        self._copies: dict[str, Tensor] = {}
        self._document: CheckpointDocument | None = None
        self.failed = False
        """Whether the last finished checkpoint was not committed, as far as this rank knows."""

    @property
    def writing(self) -> bool:
        """Whether a checkpoint is still being written."""
        return self._running is not None and not self._running.done()

    def begin(self, part: Mapping[str, Tensor], document: CheckpointDocument, *, since: float | None = None) -> None:
        """Start to write a checkpoint; all ranks call it at the same step.

        Args:
            part: This rank's tensors of the state by name, on any device; they may change as soon as this returns.
            document: The document that rank 0 commits, without its parts.
            since: When training began to wait for it, by ``time.perf_counter``; default now.
        """
        began = time.perf_counter() if since is None else since
        self.finish()
        self._copies = {name: _copied(tensor, self._copies.get(name)) for name, tensor in part.items()}
        for device in {tensor.device for tensor in part.values() if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        self._start(document, began, time.perf_counter() - began)

    def again(self) -> None:
        """Write the last checkpoint once more; all ranks call it together, after ``finish``."""
        assert self._document is not None
        self._start(self._document, time.perf_counter(), 0.0)

    def heard(self) -> list[Saved]:
        """The checkpoints that have ended since the last call; does not wait."""
        if self._running is not None and self._running.done():
            self.finish()
        unheard, self._unheard = self._unheard, []
        return unheard

    def finish(self) -> None:
        """Wait until nothing is being written."""
        if self._running is not None:
            saved = self._running.result()
            self._unheard.append(saved)
            self._running, self.failed = None, bool(saved.failure)

    def ended(self, within_s: float) -> bool:
        """Wait at most ``within_s`` seconds until nothing is being written; returns whether that is so."""
        return self._running is None or bool(wait([self._running], timeout=within_s).done)

    def hold(self, patience_s: float) -> float:
        """Wait for the checkpoint that is being written, until ``patience_s`` after its beginning; returns the seconds waited."""
        began = time.perf_counter()
        left_s = self._began + patience_s - began
        if self._running is None or left_s <= 0:
            return 0.0
        wait([self._running], timeout=left_s)
        return time.perf_counter() - began

    def _start(self, document: CheckpointDocument, began: float, held_up_s: float) -> None:
        self._document, self._began = document, began
        self._running = in_thread(partial(self._write, self._copies, document, began, held_up_s), name="sparkring-checkpoint")

    def _write(self, tensors: Mapping[str, Tensor], document: CheckpointDocument, began: float, held_up_s: float) -> Saved:
        """Store this rank's part, exchange parts and, on rank 0, commit; runs in the thread."""
        name = failure = untidy = ""
        parts: tuple[CheckpointPart, ...] = ()
        steps = 0
        superseded: Superseded | None = None
        try:
            parts = self._exchange(self._put(tensors, document), document.position.steps_done)
            if self._communicator.context.rank == 0:
                name = self._commit(document.model_copy(update={"parts": parts}))
                steps = max(0, self._steps_done() - document.position.steps_done)
                untidy = self._tidy(document.generation)
        except Exception as error:  # noqa: BLE001 (the loop decides what a failure means)
            failure = f"{type(error).__name__}: {error}"
            superseded = error if isinstance(error, Superseded) else None
        return Saved(document, name, held_up_s, time.perf_counter() - began, steps, sum(part.bytes for part in parts), failure, untidy,
                     superseded)

    def _commit(self, document: CheckpointDocument) -> str:
        try:
            return self._checkpoints.commit(document)
        except Exception:
            with suppress(OSError):  # without an answer the commit may have succeeded, so its parts must stay
                if not self._checkpoints.is_committed(document):
                    for part in document.parts:
                        self._checkpoints.drop_part(part)
            raise

    def _tidy(self, generation: int) -> str:
        """Delete old checkpoints; returns the reason if that failed."""
        try:
            self._checkpoints.retain(self._keep, generation=generation)
        except Exception as error:  # noqa: BLE001 (they can stay)
            return f"{type(error).__name__}: {error}"
        return ""

    def _put(self, tensors: Mapping[str, Tensor], document: CheckpointDocument) -> CheckpointPart | str | None:
        """Store this rank's part and its events; returns the part, the reason of a failure, or None without tensors."""
        part, rank = None, self._communicator.context.rank
        try:
            if tensors:
                part = self._checkpoints.put_part(safetensors_pieces(tensors), steps=document.position.steps_done, rank=rank,
                                                  generation=document.generation)
            self._settle()
        except Exception as error:  # noqa: BLE001 (the other ranks must know of every failure)
            if part is not None:
                self._checkpoints.drop_part(part)
            return f"rank {rank}: {type(error).__name__}: {error}"
        return part

    def _exchange(self, mine: CheckpointPart | str | None, steps: int) -> tuple[CheckpointPart, ...]:
        """All ranks' parts.

        Raises:
            OSError: some rank could not store its part; this one has deleted its own.
        """
        report = {"failure": mine} if isinstance(mine, str) else {"part": mine and mine.model_dump()}
        reports = [json.loads(each) for each in self._gather(json.dumps(report).encode(), f"checkpoint.{steps}")]
        failures = [each["failure"] for each in reports if "failure" in each]
        if failures:
            if isinstance(mine, CheckpointPart):
                self._checkpoints.drop_part(mine)
            raise OSError("; ".join(failures))
        return tuple(CheckpointPart.model_validate(each["part"]) for each in reports if each["part"])

    def _gather(self, report: bytes, name: str) -> list[bytes]:
        """All ranks' reports, by rank. On one host they pass through memory of their own, since the training thread uses the other."""
        if self._beside is None:
            return self._communicator.gather_bytes_off_thread(report, name=name, deadline_s=UPLOAD_DEADLINE_S)
        mine = torch.frombuffer(bytearray(report), dtype=torch.uint8)
        return [part.numpy().tobytes() for part in self._beside.gather(mine, name, deadline_s=UPLOAD_DEADLINE_S)]


def _copied(tensor: Tensor, used: Tensor | None) -> Tensor:
    """A copy on the CPU, in the memory of the copy before if that fits: fresh pages cost more than copying.

    From a GPU the copy is on its way when this returns, into pinned memory.
    """
    if used is None or used.shape != tensor.shape or used.dtype != tensor.dtype:
        used = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return used.copy_(tensor, non_blocking=tensor.is_cuda)
