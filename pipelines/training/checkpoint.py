"""Checkpoints of a run: a state in parts and its exact position, made visible by one commit.

    <run>/checkpoints/data/<steps>-<rank>-<mark>.safetensors   each rank's part of the state, written first
    <run>/checkpoints/<steps>.json                             the document that names all parts by hash: the commit

``<steps>`` counts optimizer steps since the run began, ``<mark>`` tells apart what is written twice. A damaged checkpoint is passed
over by name and the one before is used. How they come to be beside training: checkpoint_writer.py.
"""

from __future__ import annotations

import hashlib
import math
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sparkring.errors import CheckpointDamaged, ConfigError
from sparkring.pipelines.data.pieces import Pieces
from sparkring.pipelines.data.store import numbered, open_store

FOLDER = "checkpoints"
DATA = f"{FOLDER}/data"
PART_NAME = r"[0-9]+-[0-9]+-[0-9a-f]{8}\.safetensors"


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
    rows_left_out: int = 0
    """Of ``rows``, those of steps that were not finite: read, but nothing was learned from them."""


class Part(BaseModel):
    """One file of a state: some of its tensors, whole, as safetensors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str = Field(pattern=f"^{PART_NAME}$")
    """In the data folder; a document cannot lead out of it."""
    bytes: int
    sha256: str


class CheckpointDocument(BaseModel):
    """What is committed: the position, the parts of the state and where they came from."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="constants")

    format: Literal[2] = 2
    position: Position
    validation: dict[str, float] | None = None
    """Held-out metrics, where the checkpoint ends an epoch."""
    content_id: str
    """Content of the dataset version."""
    dataset_version: int
    seed: int
    lanes: int
    batch_rows: int
    code_version: str
    torch_version: str = ""
    config: dict[str, Any] = {}
    """The sections ``model`` and ``train`` that it was made under."""
    lr: float | None = None
    """The rate of the next step; it follows from the position and the config."""
    layout: str = ""
    """How the model lay over the ranks, for people: any layout goes on from any checkpoint."""
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and whose hashes are right."""

    document: CheckpointDocument
    state: tuple[bytes, ...]
    """Its parts."""


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run_url: str) -> None:
        self._store = open_store(run_url)

    def numbers(self) -> list[int]:
        """Committed checkpoints by optimizer steps, oldest first."""
        return numbered(self._store, FOLDER)

    def put_part(self, state: bytes | Pieces, *, steps: int, rank: int) -> Part:
        """Write one rank's part of a state; nobody sees it before ``commit``. It is hashed while it is written."""
        pieces: Pieces = [state] if isinstance(state, bytes) else state
        name = f"{steps}-{rank}-{uuid.uuid4().hex[:8]}.safetensors"
        with ThreadPoolExecutor(1, thread_name_prefix="sparkring-hash") as pool:
            hashing = pool.submit(_sha256, pieces)
            self._store.put_pieces(f"{DATA}/{name}", pieces)
            return Part(name=name, bytes=sum(map(len, pieces)), sha256=hashing.result())

    def drop_part(self, part: Part) -> None:
        """Take back what was written for a checkpoint that does not come about, if the storage lets it."""
        with suppress(OSError, ConfigError):
            self._store.delete(f"{DATA}/{part.name}")

    def is_committed(self, number: int) -> bool:
        """Whether there is a document of that number."""
        return self._store.size(f"{FOLDER}/{number}.json") is not None

    def commit(self, document: CheckpointDocument) -> str:
        """Make a checkpoint visible whose parts are all written; returns its name."""
        steps = document.position.steps_done
        name = f"{FOLDER}/{steps}.json"
        self._store.put(name, document.model_dump_json(indent=1).encode())  # in place of one of the same step before a restart
        for number in self.numbers():
            if number > steps:  # of a life that was damaged and has been overtaken
                with suppress(OSError):  # this one is committed all the same
                    self._forget(number)
        return name

    def document(self, number: int) -> CheckpointDocument:
        """Read what a checkpoint says of itself.

        Raises:
            CheckpointDamaged: it cannot be read.
        """
        name = f"{FOLDER}/{number}.json"
        try:
            return CheckpointDocument.model_validate_json(self._store.read(name))
        except (OSError, ValidationError) as error:
            raise CheckpointDamaged(f"checkpoint {self._store.path(name)} cannot be read: {str(error).splitlines()[0]}") from None

    def read(self, number: int) -> Checkpoint:
        """Read one checkpoint and check its hashes.

        Raises:
            CheckpointDamaged: a file is missing or not what was committed.
        """
        document = self.document(number)
        return Checkpoint(document, tuple(self._read_part(number, part) for part in document.parts))

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
        for _, number in _judged(self._documents()):
            try:
                return self.read(number)
            except CheckpointDamaged:
                continue
        return None

    def retain(self, keep: int) -> None:
        """Delete all but the latest ``keep`` and the best: first documents, then the parts that no document names.

        Parts of more steps than the latest checkpoint has stay: some rank may just be writing them.
        """
        documents = self._documents()
        kept = set(sorted(documents)[-keep:]) | {number for _, number in _judged(documents)[:1]}
        for number in documents.keys() - kept:
            self._store.delete(f"{FOLDER}/{number}.json")
        needed = {part.name for number in kept for part in documents[number].parts}
        for file in self._store.names(DATA):
            if file not in needed and re.fullmatch(PART_NAME, file) and int(file.partition("-")[0]) <= max(kept, default=-1):
                self._store.delete(f"{DATA}/{file}")

    def _forget(self, number: int) -> None:
        """Delete a checkpoint, and the parts that it names if that can be read."""
        parts: tuple[Part, ...] = ()
        with suppress(CheckpointDamaged):
            parts = self.document(number).parts
        self._store.delete(f"{FOLDER}/{number}.json")
        for part in parts:
            self._store.delete(f"{DATA}/{part.name}")

    def _read_part(self, number: int, part: Part) -> bytes:
        where = f"checkpoint {self._store.path(f'{FOLDER}/{number}.json')}: its part {part.name}"
        try:
            state = self._store.read(f"{DATA}/{part.name}")
        except OSError as error:
            raise CheckpointDamaged(f"{where} cannot be read: {str(error).splitlines()[0]}") from None
        found = hashlib.sha256(state).hexdigest()
        if found != part.sha256:
            raise CheckpointDamaged(f"{where} has {len(state)} bytes with SHA-256 {found}, it was committed with {part.bytes} and "
                                    f"{part.sha256}")
        return state

    def _documents(self) -> dict[int, CheckpointDocument]:
        documents = {}
        for number in self.numbers():
            try:
                documents[number] = self.document(number)
            except CheckpointDamaged:
                continue  # `latest` names it
        return documents


def _sha256(pieces: Pieces) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _judged(documents: dict[int, CheckpointDocument]) -> list[tuple[float, int]]:
    """(held-out loss, number) of those that have one that is a number, the best first."""
    judged = ((document.validation.get("loss", math.nan), number) for number, document in documents.items() if document.validation)
    return sorted((loss, number) for loss, number in judged if not math.isnan(loss))
