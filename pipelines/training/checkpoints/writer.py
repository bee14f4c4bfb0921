"""Checkpoints beside training: a rank copies its part of the state in memory and trains on, a thread does the rest.

    loop       copy this rank's part (first waits for the checkpoint before this one, if it is still being written)
    thread     hash and store it, and this rank's events so far; tell all ranks; rank 0 commits once it has heard of every part
    loop       hears how it went, some steps later

A part that cannot be stored costs its checkpoint, never the run: the one before stays as it is, and the loop hears why. What was
written of it is taken back, so that a full disk does not fill further.
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

from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.collectives.keepalive import in_thread
from sparkring.pipelines.parallel.shared_memory.exchange import open_exchange
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument, CheckpointPart
from sparkring.pipelines.training.checkpoints.safetensors_pieces import safetensors_pieces
from sparkring.pipelines.training.checkpoints.store import Checkpoints

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
    steps: int = 0
    """Optimizer steps that were done meanwhile."""
    bytes: int = 0
    """Of all parts."""
    failure: str = ""
    """Why it was not committed, as far as this rank knows: rank 0 alone knows of the commit itself."""
    untidy: str = ""
    """Why older ones could not be deleted."""


class CheckpointWriter:
    """Writes one rank's parts of checkpoints, one checkpoint at a time."""

    def __init__(self, checkpoints: Checkpoints, communicator: Communicator, *, keep: int,
                 settle: Callable[[], None] = lambda: None, steps_done: Callable[[], int] = lambda: 0) -> None:
        """Write nothing yet.

        Args:
            checkpoints: Of the run.
            communicator: Of its ranks, all of which make their writer at the same point.
            keep: How many of the latest checkpoints stay, beside the best one.
            settle: Sees that what must be in storage before a commit is there, this rank's events; OSError where it is not.
            steps_done: Optimizer steps that this rank has done by now.
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
        """Whether the checkpoint that was finished last was not committed, as far as this rank knows."""

    @property
    def writing(self) -> bool:
        """Whether a checkpoint is still being written."""
        return self._running is not None and not self._running.done()

    def begin(self, part: Mapping[str, Tensor], document: CheckpointDocument, *, since: float | None = None) -> None:
        """Start to write a checkpoint; all ranks call it at the same step.

        Args:
            part: This rank's tensors of the state by name; they may change as soon as this returns.
            document: What rank 0 is to commit, without its parts.
            since: When training began to stand still for it, by ``time.perf_counter``; default now.
        """
        began = time.perf_counter() if since is None else since
        self.finish()
        self._copies = {name: _copied(tensor, self._copies.get(name)) for name, tensor in part.items()}
        self._start(document, began, time.perf_counter() - began)

    def again(self) -> None:
        """Write the checkpoint that was begun last once more; all ranks call it together, after ``finish``."""
        assert self._document is not None
        self._start(self._document, time.perf_counter(), 0.0)

    def heard(self) -> list[Saved]:
        """What has ended since this was asked last; waits for nothing."""
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
        """Whether nothing is being written any more, ``within_s`` seconds from now at most."""
        return self._running is None or bool(wait([self._running], timeout=within_s).done)

    def hold(self, patience_s: float) -> float:
        """Wait until the checkpoint is there that is being written, or was begun ``patience_s`` ago; seconds that were waited."""
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
        """In the thread."""
        name = failure = untidy = ""
        parts: tuple[CheckpointPart, ...] = ()
        steps = 0
        try:
            parts = self._exchange(self._put(tensors, document), document.position.steps_done)
            if self._communicator.context.rank == 0:
                name = self._commit(document.model_copy(update={"parts": parts}))
                steps = max(0, self._steps_done() - document.position.steps_done)
                untidy = self._tidy(document.generation)
        except Exception as error:  # noqa: BLE001 (whatever storage or network say: a checkpoint is no reason to end the run)
            failure = f"{type(error).__name__}: {error}"
        return Saved(document, name, held_up_s, time.perf_counter() - began, steps, sum(part.bytes for part in parts), failure, untidy)

    def _commit(self, document: CheckpointDocument) -> str:
        try:
            return self._checkpoints.commit(document)
        except Exception:
            with suppress(OSError):  # where nobody answers, it may have been done: then its parts have to stay
                if not self._checkpoints.is_committed(document):
                    for part in document.parts:
                        self._checkpoints.drop_part(part)
            raise

    def _tidy(self, generation: int) -> str:
        """Delete old checkpoints; why not, if that failed."""
        try:
            self._checkpoints.retain(self._keep, generation=generation)
        except Exception as error:  # noqa: BLE001 (they can stay)
            return f"{type(error).__name__}: {error}"
        return ""

    def _put(self, tensors: Mapping[str, Tensor], document: CheckpointDocument) -> CheckpointPart | str | None:
        """Store this rank's part and its events; the part, why there is none, or None where it has no tensors."""
        part, rank = None, self._communicator.context.rank
        try:
            if tensors:
                part = self._checkpoints.put_part(safetensors_pieces(tensors), steps=document.position.steps_done, rank=rank,
                                                  generation=document.generation)
            self._settle()
        except Exception as error:  # noqa: BLE001 (the others are to hear it, whatever it is)
            if part is not None:
                self._checkpoints.drop_part(part)
            return f"rank {rank}: {type(error).__name__}: {error}"
        return part

    def _exchange(self, mine: CheckpointPart | str | None, steps: int) -> tuple[CheckpointPart, ...]:
        """All ranks' parts.

        Raises:
            OSError: some rank could not store its part; this one has taken back its own.
        """
        words = {"failure": mine} if isinstance(mine, str) else {"part": mine and mine.model_dump()}
        told = [json.loads(each) for each in self._tell(json.dumps(words).encode(), f"checkpoint.{steps}")]
        failures = [each["failure"] for each in told if "failure" in each]
        if failures:
            if isinstance(mine, CheckpointPart):
                self._checkpoints.drop_part(mine)
            raise OSError("; ".join(failures))
        return tuple(CheckpointPart.model_validate(each["part"]) for each in told if each["part"])

    def _tell(self, words: bytes, name: str) -> list[bytes]:
        """What all ranks say, by rank: through memory of their own where they share a host, since the thread that trains uses the other."""
        if self._beside is None:
            return self._communicator.gather_bytes_off_thread(words, name=name, deadline_s=UPLOAD_DEADLINE_S)
        mine = torch.frombuffer(bytearray(words), dtype=torch.uint8)
        return [part.numpy().tobytes() for part in self._beside.gather(mine, name, deadline_s=UPLOAD_DEADLINE_S)]


def _copied(tensor: Tensor, used: Tensor | None) -> Tensor:
    """A copy on the CPU, in the memory of the copy before where that fits: fresh pages cost more than the copying."""
    if used is None or used.shape != tensor.shape or used.dtype != tensor.dtype:
        used = torch.empty(tensor.shape, dtype=tensor.dtype)
    return used.copy_(tensor)
