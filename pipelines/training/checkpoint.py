"""Checkpoints of a run: a state and its exact position, written beside training and made visible by one commit.

    <run>/checkpoints/data/<hash>.safetensors   the state, written first
    <run>/checkpoints/<steps>.json              the document that names it by hash: the commit

``<steps>`` counts optimizer steps since the run began. A damaged checkpoint is passed over by name and the one before
is used.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from sparkring.errors import CheckpointDamaged
from sparkring.pipelines.data.store import numbered, open_store

FOLDER = "checkpoints"


class Position(BaseModel):
    """Where a run stands: all that is needed to go on, on any number of ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    epoch: int = 0
    """The epoch that the next step belongs to."""
    step: int = 0
    """The next step of that epoch."""
    steps_done: int = 0
    """Optimizer steps since the run began."""
    loss_sum: float = 0.0
    """Sum over the epoch's rows so far of their loss."""
    rows: int = 0
    """The epoch's rows so far."""
    rows_digest: str = "0" * 16
    """Order-free hash of their ids, over all ranks."""
    receipts: str = ""
    """Hash over all ranks' events since the run began (``data/receipts.py``); empty at its beginning."""
    seconds: float = 0.0
    """Seconds of the epoch so far."""


class CheckpointDocument(BaseModel):
    """What is committed: the position, the state's hash and where it came from."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    format: Literal[1] = 1
    position: Position
    validation: dict[str, float] | None = None
    """Held-out metrics, where the checkpoint ends an epoch."""
    content_id: str
    """Content of the dataset version."""
    seed: int
    lanes: int
    batch_rows: int
    code_version: str
    sha256: str
    """Of the state's bytes."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and whose hash is right."""

    document: CheckpointDocument
    state: bytes


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run_url: str) -> None:
        self._store = open_store(run_url)

    def numbers(self) -> list[int]:
        """Committed checkpoints by optimizer steps, oldest first."""
        return numbered(self._store, FOLDER)

    def save(self, state: bytes, document: CheckpointDocument) -> str:
        """Write the state, then commit the document; returns its name. The document's hash is filled in here."""
        committed = document.model_copy(update={"sha256": hashlib.sha256(state).hexdigest()})
        steps = committed.position.steps_done
        name = f"{FOLDER}/{steps}.json"
        self._store.put(_state_name(committed), state)
        self._store.put(name, committed.model_dump_json(indent=1).encode())  # in place of one of the same step before a restart
        for number in self.numbers():
            if number > steps:  # of a life that was damaged and has been overtaken
                self._store.delete(f"{FOLDER}/{number}.json")
        return name

    def read(self, number: int) -> Checkpoint:
        """Read one checkpoint and check its hash.

        Raises:
            CheckpointDamaged: a file is missing or not what was committed.
        """
        name = f"{FOLDER}/{number}.json"
        try:
            document = CheckpointDocument.model_validate_json(self._store.read(name))
            state = self._store.read(_state_name(document))
        except (OSError, ValidationError) as error:
            raise CheckpointDamaged(f"checkpoint {self._store.path(name)} cannot be read: {str(error).splitlines()[0]}") from None
        found = hashlib.sha256(state).hexdigest()
        if found != document.sha256:
            raise CheckpointDamaged(f"checkpoint {self._store.path(name)}: its state has SHA-256 {found}, it was committed "
                                    f"with {document.sha256}")
        return Checkpoint(document, state)

    def latest(self) -> tuple[Checkpoint | None, list[CheckpointDamaged]]:
        """The latest whole checkpoint, or None, and the damaged ones that were passed over."""
        damaged: list[CheckpointDamaged] = []
        for number in reversed(self.numbers()):
            try:
                return self.read(number), damaged
            except CheckpointDamaged as error:
                damaged.append(error)
        return None, damaged

    def best(self) -> Checkpoint | None:
        """The whole checkpoint with the lowest held-out loss, or None."""
        judged = sorted(((document.validation["loss"], number) for number, document in self._documents().items() if document.validation))
        for _, number in judged:
            try:
                return self.read(number)
            except CheckpointDamaged:
                continue
        return None

    def retain(self, keep: int) -> None:
        """Delete all but the latest ``keep`` and the best: first documents, then the states that no document names."""
        documents = self._documents()
        judged = [(document.validation["loss"], number) for number, document in documents.items() if document.validation]
        kept = set(sorted(documents)[-keep:]) | {number for _, number in sorted(judged)[:1]}
        for number in documents.keys() - kept:
            self._store.delete(f"{FOLDER}/{number}.json")
        needed = {_state_name(documents[number]) for number in kept}
        for file in self._store.names(f"{FOLDER}/data"):
            if f"{FOLDER}/data/{file}" not in needed:
                self._store.delete(f"{FOLDER}/data/{file}")

    def _documents(self) -> dict[int, CheckpointDocument]:
        documents = {}
        for number in self.numbers():
            try:
                documents[number] = CheckpointDocument.model_validate_json(self._store.read(f"{FOLDER}/{number}.json"))
            except (OSError, ValidationError):
                continue  # damaged: `latest` names it
        return documents


def _state_name(document: CheckpointDocument) -> str:
    return f"{FOLDER}/data/{document.sha256[:32]}.safetensors"
