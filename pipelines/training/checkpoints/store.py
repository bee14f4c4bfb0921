"""The checkpoints of a run: each a state in parts and its exact position, made visible by one commit.

    names.py        file names                          files.py       their files in the store
    documents.py    the committed documents             parts.py       the state, read lazily
    fence.py        which commits count                 retention.py   which are deleted
    pace.py         when a checkpoint is begun          writer.py      how one is written beside training

A damaged checkpoint is skipped and reported by name, and the one before is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from sparkring.errors import CheckpointDamaged, Superseded
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.data.stores.pieces import Pieces
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument, CheckpointPart
from sparkring.pipelines.training.checkpoints.fence import counting, later, void_by
from sparkring.pipelines.training.checkpoints.files import CheckpointFiles
from sparkring.pipelines.training.checkpoints.names import Commit
from sparkring.pipelines.training.checkpoints.parts import StateParts
from sparkring.pipelines.training.checkpoints.retention import best_first, forget_overtaken, readable, retain


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read, and whose hashes are right."""

    document: CheckpointDocument
    state: Sequence[bytes]
    """Its parts, by rank."""


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run_url: str) -> None:
        self._files = CheckpointFiles(open_store(run_url))

    def numbers(self) -> list[int]:
        """Committed checkpoints by optimizer steps, oldest first."""
        return sorted({commit.steps for commit in self._files.commits()})

    def generations(self) -> list[int]:
        """Generations that have written a fence."""
        return sorted(generation for generation, _ in self._files.fences())

    def fence(self, generation: int, *, steps: int) -> None:
        """Record that a generation resumes after so many steps: from now on, earlier generations' commits beyond them do not count."""
        self._files.put_fence(generation, steps=steps)

    def put_part(self, state: bytes | Pieces, *, steps: int, rank: int, generation: int = 0) -> CheckpointPart:
        """Write one rank's part of a state; nobody sees it before ``commit``. It is hashed while it is written."""
        return self._files.put_part([state] if isinstance(state, bytes) else state, steps=steps, rank=rank, generation=generation)

    def drop_part(self, part: CheckpointPart) -> None:
        """Delete a part of a checkpoint that will not be committed, if the storage allows it."""
        self._files.drop_part(part)

    def is_committed(self, document: CheckpointDocument) -> bool:
        """Whether that document of that generation exists."""
        return self._files.has(document.commit)

    def commit(self, document: CheckpointDocument) -> str:
        """Make a checkpoint visible whose parts are all written; returns its name.

        Raises:
            Superseded: a later generation has begun; nothing was changed.
        """
        commit = document.commit
        overtaken_by = later(self._files.fences(), commit.generation)
        if overtaken_by is not None:
            raise Superseded(f"generation {commit.generation} is over: generation {overtaken_by} of the run has begun, and its "
                             f"checkpoints count: {self._files.path(commit)} was not committed; leave the run to the command that began "
                             f"generation {overtaken_by}.")
        self._files.put_document(document)
        forget_overtaken(self._files, commit)
        return commit.name

    def document(self, number: int) -> CheckpointDocument:
        """Read a checkpoint's document.

        Args:
            number: Its optimizer steps.
        Raises:
            CheckpointDamaged: it is gone, cannot be parsed, or does not count.
            ConfigError: it is of another format.
            StorageError: it cannot be read now.
        """
        fences = self._files.fences()
        commit = counting(self._files.commits(), fences).get(number)
        if commit is None:
            raise CheckpointDamaged(f"checkpoint {self._files.path(Commit(number, 0))} cannot be read: no generation has committed "
                                    f"one after {number} steps")
        document = self._files.document(commit)
        fence = void_by(fences, generation=commit.generation, steps=number)
        if fence is not None:
            raise CheckpointDamaged(f"checkpoint {self._files.path(commit)} does not count: generation {commit.generation} committed "
                                    f"it late, after generation {fence[0]} had resumed from {fence[1]} steps")
        return document

    def read(self, number: int) -> Checkpoint:
        """Read one checkpoint and check its hashes.

        Args:
            number: Its optimizer steps.
        Raises:
            CheckpointDamaged: a file is missing or differs from the committed one.
            StorageError: it cannot be read now.
        """
        document = self.document(number)
        return Checkpoint(document, StateParts(partial(self._files.part, document.commit), document.parts))

    def latest(self) -> tuple[Checkpoint | None, list[CheckpointDamaged]]:
        """The latest whole checkpoint, or None, and the damaged ones that were skipped.

        Raises:
            ConfigError: one is of another format; skipping it would begin the run again and void it.
            StorageError: a checkpoint cannot be read now, so nobody knows whether it is whole.
        """
        damaged: list[CheckpointDamaged] = []
        for number in reversed(self.numbers()):
            try:
                return self.read(number), damaged
            except CheckpointDamaged as error:
                damaged.append(error)
        return None, damaged

    def best(self) -> Checkpoint | None:
        """The whole checkpoint with the lowest held-out score, or None; StorageError if that cannot be known now."""
        for commit in best_first(readable(self._files)):
            try:
                return self.read(commit.steps)
            except CheckpointDamaged:
                continue
        return None

    def scores(self) -> list[float]:
        """Held-out scores of the finished epochs whose documents count; NaN where the metric was."""
        return [document.best_by for document in readable(self._files).values() if document.validation is not None]

    def retain(self, keep: int, *, generation: int | None = None) -> None:
        """Delete all but the latest ``keep`` and the best of those that count (``retention.retain``)."""
        retain(self._files, keep, generation=generation)
