"""Checkpoints of a run: a state in parts and its exact position, made visible by one commit.

    <run>/checkpoints/data/<steps>-<rank>-<life>-<mark>.safetensors   each rank's part of the state, written first
    <run>/checkpoints/<steps>-<life>.json                             the document that names all parts by hash: the commit
    <run>/checkpoints/fences/...                                      where each life of the ring began (fence.py)

``<steps>`` counts optimizer steps since the run began, ``<life>`` is the generation of the ring that wrote it, ``<mark>`` tells apart what
is written twice. So no life ever writes over another one's files, and a late one deletes none but its own and older ones. A damaged
checkpoint is passed over by name and the one before is used. How they come to be beside training: writer.py.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, NamedTuple, overload

from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sparkring.errors import CheckpointDamaged, CommitConflict, ConfigError, StorageError
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.data.stores.pieces import Pieces
from sparkring.pipelines.training.checkpoints.fence import Fences, fence_name, fences_of, later, void_by

FOLDER = "checkpoints"
DATA, FENCES = f"{FOLDER}/data", f"{FOLDER}/fences"
FORMAT: Final = 4
"""Of documents: what a version of sparkring writes, and the only one that it reads."""
PART_NAME = r"[0-9]+-[0-9]+(-[0-9]+)?-[0-9a-f]{8}\.safetensors"
_DOCUMENT_NAME = re.compile(r"(0|[1-9][0-9]{0,17})(?:-(0|[1-9][0-9]{0,17}))?\.json")
AT_HAND_BYTES = 256 << 20
"""Of a state that was read, what is kept until it is taken."""
UNSAID = -1
"""Generation of what does not say it."""


class Commit(NamedTuple):
    """A document by what its name says."""

    steps: int
    generation: int

    @property
    def name(self) -> str:
        """Below the run."""
        return f"{FOLDER}/{self.steps}{_life(self.generation)}.json"


class Position(BaseModel):
    """Where a run stands: all that is needed to go on, on any number of ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, populate_by_name=True, serialize_by_alias=True)

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
    to_evaluate: bool = Field(default=False, alias="to_judge")
    """Whether the epoch before is still to be evaluated: ``loss_sum``, ``rows``, ``rows_digest`` and ``seconds`` are then its own."""
    rows_left_out: int = 0
    """Of ``rows``, those of steps that were not finite: read, but nothing was learned from them."""


class CheckpointPart(BaseModel):
    """One file of a state: some of its tensors, whole, as safetensors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str = Field(pattern=f"^{PART_NAME}$")
    """In the data folder; a document cannot lead out of it."""
    bytes: int
    blake3: str
    """Its hash, ten times as fast as SHA-256 on a processor without instructions for that."""


class CheckpointDocument(BaseModel):
    """What is committed: the position, the parts of the state and where they came from."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="constants")

    format: Literal[4] = FORMAT
    position: Position
    generation: int = -1
    """Life of the ring that made it; -1 where it does not say."""
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
    parts: tuple[CheckpointPart, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and whose hashes are right."""

    document: CheckpointDocument
    state: Sequence[bytes]
    """Its parts."""


class _State(Sequence[bytes]):
    """Parts of a state. All are looked at once; what is more than a little is read again when it is taken: who reads has memory for a part
    of a large model, not for all of it. One that is no longer what it was then is storage's fault (StorageError).
    """

    def __init__(self, read: Callable[[CheckpointPart], bytes], parts: Sequence[CheckpointPart]) -> None:
        self._read, self._parts, self._at_hand = read, parts, dict[int, bytes]()
        room = AT_HAND_BYTES
        for number, part in enumerate(parts):
            state = read(part)
            room -= len(state)
            if room >= 0:
                self._at_hand[number] = state

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        number = range(len(self))[index]
        return self._at_hand[number] if number in self._at_hand else self._again(self._parts[number])

    def _again(self, part: CheckpointPart) -> bytes:
        try:
            return self._read(part)
        except CheckpointDamaged as error:  # now; who looks for a checkpoint anew passes this one over
            raise StorageError(f"{error}; it was whole when it was looked at first") from error


class _Versioned(BaseModel):
    """As much of a document as every version's has."""

    model_config = ConfigDict(strict=True)

    format: int


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run_url: str) -> None:
        self._store = open_store(run_url)

    def numbers(self) -> list[int]:
        """Committed checkpoints by optimizer steps, oldest first."""
        return sorted({commit.steps for commit in self._commits()})

    def generations(self) -> list[int]:
        """Lives of the ring that have said where they went on from."""
        return sorted(generation for generation, _ in self._fences())

    def fence(self, generation: int, *, steps: int) -> None:
        """Say that a life of the ring goes on after so many steps: what an earlier one commits beyond them does not count from now on."""
        self._store.put(f"{FENCES}/{fence_name(generation, steps)}", b"{}\n")

    def put_part(self, state: bytes | Pieces, *, steps: int, rank: int, generation: int = UNSAID) -> CheckpointPart:
        """Write one rank's part of a state; nobody sees it before ``commit``. It is hashed while it is written."""
        pieces: Pieces = [state] if isinstance(state, bytes) else state
        name = f"{steps}-{rank}{_life(generation)}-{uuid.uuid4().hex[:8]}.safetensors"
        with ThreadPoolExecutor(1, thread_name_prefix="sparkring-hash") as pool:
            hashing = pool.submit(_hash, pieces)
            self._store.put_pieces(f"{DATA}/{name}", pieces)
            return CheckpointPart(name=name, bytes=sum(map(len, pieces)), blake3=hashing.result())

    def drop_part(self, part: CheckpointPart) -> None:
        """Take back what was written for a checkpoint that does not come about, if the storage lets it."""
        with suppress(OSError, ConfigError):
            self._store.delete(f"{DATA}/{part.name}")

    def is_committed(self, document: CheckpointDocument) -> bool:
        """Whether that document of that life is there."""
        return self._store.size(_commit_of(document).name) is not None

    def commit(self, document: CheckpointDocument) -> str:
        """Make a checkpoint visible whose parts are all written; returns its name.

        Raises:
            CommitConflict: a later life of the ring has begun; nothing was changed.
        """
        commit = _commit_of(document)
        overtaken_by = later(self._fences(), commit.generation)
        if overtaken_by is not None:
            raise CommitConflict(f"generation {commit.generation} is over: generation {overtaken_by} of the run has begun, and its "
                                 f"checkpoints count; {self._store.path(commit.name)} was not committed. End what is left of the older.")
        self._store.put(commit.name, document.model_dump_json(indent=1).encode())  # one process of a life does this
        self._forget_overtaken(commit)
        return commit.name

    def document(self, number: int) -> CheckpointDocument:
        """Read what a checkpoint says of itself.

        Raises:
            CheckpointDamaged: it is gone, makes no sense, or does not count.
            ConfigError: another version of sparkring wrote it.
            StorageError: it cannot be read now.
        """
        fences = self._fences()
        commit = _best_known(self._commits(), fences).get(number, Commit(number, UNSAID))
        document = self._document(commit)
        fence = void_by(fences, generation=commit.generation, steps=number)
        if fence is not None:
            raise CheckpointDamaged(f"checkpoint {self._store.path(commit.name)} does not count: generation {commit.generation} committed "
                                    f"it late, generation {fence[0]} had gone on after {fence[1]} steps")
        return document

    def read(self, number: int) -> Checkpoint:
        """Read one checkpoint and check its hashes.

        Raises:
            CheckpointDamaged: a file is missing or not what was committed.
            StorageError: it cannot be read now.
        """
        document = self.document(number)
        return Checkpoint(document, _State(partial(self._read_part, _commit_of(document)), document.parts))

    def latest(self) -> tuple[Checkpoint | None, list[CheckpointDamaged]]:
        """The latest whole checkpoint, or None, and the damaged ones that were passed over.

        Raises:
            ConfigError: another version of sparkring wrote one; to pass it over would begin the run anew, and void it.
            StorageError: whether one is whole cannot be known now.
        """
        damaged: list[CheckpointDamaged] = []
        for number in reversed(self.numbers()):
            try:
                return self.read(number), damaged
            except CheckpointDamaged as error:
                damaged.append(error)
        return None, damaged

    def best(self) -> Checkpoint | None:
        """The whole checkpoint with the lowest held-out loss, or None; StorageError where that cannot be known now."""
        counting = {commit.steps: document for commit, document in self._documents().items()}
        for _, number in _judged(counting):
            try:
                return self.read(number)
            except CheckpointDamaged:
                continue
        return None

    def retain(self, keep: int, *, generation: int | None = None) -> None:
        """Delete all but the latest ``keep`` and the best of those that count: first documents, then the parts that no document names.

        Parts of more steps than the latest checkpoint has stay: some rank may just be writing them.

        Args:
            keep: How many.
            generation: Who asks: what later lives have written stays, and all does where one of them has begun. Default: somebody from
                outside, while no ring runs.
        """
        if self._is_over(generation):
            return
        parts = [name for name in self._store.names(DATA) if re.fullmatch(PART_NAME, name)]  # before the documents that name them
        documents, everything, fences = self._documents(), self._commits(), self._fences()
        counting = {commit.steps: document for commit, document in documents.items()}
        kept = set(sorted(counting)[-keep:]) | {number for _, number in _judged(counting)[:1]}
        stay = {commit for commit in documents if commit.steps in kept}
        void = {commit for commit in everything if void_by(fences, generation=commit.generation, steps=commit.steps) is not None}
        doomed = [commit for commit in sorted((documents.keys() | void) - stay) if not _is_later(commit.generation, generation)]
        if self._is_over(generation):  # it may have hung meanwhile
            return
        for commit in doomed:
            self._store.delete(commit.name)
        if self._is_over(generation):
            return
        needed = {part.name for commit in stay for part in documents[commit].parts}
        for name in parts:
            steps, life = _of_part(name)
            if name not in needed and steps <= max(kept, default=-1) and not _is_later(life, generation):
                self._store.delete(f"{DATA}/{name}")

    def _is_over(self, generation: int | None) -> bool:
        """Whether a later life of the ring has begun than this one."""
        return generation is not None and later(self._fences(), generation) is not None

    def _forget_overtaken(self, newest: Commit) -> None:
        """Delete what lives up to this one have of more steps, now that one of fewer counts; where storage is away, they stay a while."""
        with suppress(OSError):
            for commit in self._commits():
                if commit.generation <= newest.generation and (commit.steps > newest.steps or (
                        commit.steps == newest.steps and commit != newest)):
                    self._forget(commit)

    def _forget(self, commit: Commit) -> None:
        """Delete a checkpoint, and the parts that it names if that can be read."""
        parts: tuple[CheckpointPart, ...] = ()
        with suppress(CheckpointDamaged):
            parts = self._document(commit).parts
        self._store.delete(commit.name)
        for part in parts:
            self._store.delete(f"{DATA}/{part.name}")

    def _read_part(self, commit: Commit, part: CheckpointPart) -> bytes:
        where = f"checkpoint {self._store.path(commit.name)}: its part {part.name}"
        state = self._read(f"{DATA}/{part.name}", where)
        found = _hash([state])
        if found != part.blake3:
            raise CheckpointDamaged(f"{where} has {len(state)} bytes with BLAKE3 {found}, it was committed with {part.bytes} and "
                                    f"{part.blake3}")
        return state

    def _fences(self) -> Fences:
        return fences_of(self._store.names(FENCES))

    def _commits(self) -> list[Commit]:
        """All documents, by what their names say; ascending."""
        matches = map(_DOCUMENT_NAME.fullmatch, self._store.names(FOLDER))
        return sorted(Commit(int(match[1]), int(match[2] or UNSAID)) for match in matches if match)

    def _document(self, commit: Commit) -> CheckpointDocument:
        """Whether it counts or not."""
        where = f"checkpoint {self._store.path(commit.name)}"
        text = self._read(commit.name, where)
        try:
            return CheckpointDocument.model_validate_json(text)
        except ValidationError as error:
            if (found := _format_of(text)) not in (None, FORMAT):
                raise ConfigError(f"{where} is of format {found}, this version of sparkring reads format {FORMAT}; run the version that "
                                  "wrote it, or begin another run. If it is damaged, delete it to go on from the one before.") from None
            raise CheckpointDamaged(f"{where} cannot be read: {str(error).splitlines()[0]}") from None

    def _read(self, name: str, where: str) -> bytes:
        """The bytes of a file.

        Raises:
            CheckpointDamaged: it is gone.
            StorageError: it cannot be read now. To take that for damage would have a run go on from an older one, and void the newer.
        """
        try:
            return self._store.read(name)
        except OSError as error:
            said = str(error).partition("\n")[0] or type(error).__name__
            if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
                raise CheckpointDamaged(f"{where} cannot be read: {said}") from None
            raise StorageError(f"{where} cannot be read now ({said}), which does not make it a damaged one; mend the storage and run the "
                               "same command again, or delete that checkpoint to go on from the one before.") from error

    def _documents(self) -> dict[Commit, CheckpointDocument]:
        """Those that count and can be read."""
        documents, fences = {}, self._fences()
        for commit in _best_known(self._commits(), fences).values():
            if void_by(fences, generation=commit.generation, steps=commit.steps) is None:
                with suppress(CheckpointDamaged):  # `latest` names it
                    documents[commit] = self._document(commit)
        return documents


def _life(generation: int) -> str:
    """As names have it."""
    return "" if generation < 0 else f"-{generation}"


def _commit_of(document: CheckpointDocument) -> Commit:
    return Commit(document.position.steps_done, document.generation)


def _of_part(name: str) -> tuple[int, int]:
    """Steps and generation of a part by its name."""
    steps, _, *life, _ = name.split("-")
    return int(steps), int(life[0]) if life else UNSAID


def _is_later(generation: int, than: int | None) -> bool:
    return than is not None and generation > than


def _best_known(commits: Iterable[Commit], fences: Fences) -> dict[int, Commit]:
    """For each number of steps the commit that counts, of the latest life; where none does, the latest all the same."""
    def worth(commit: Commit) -> tuple[bool, int]:
        return void_by(fences, generation=commit.generation, steps=commit.steps) is None, commit.generation

    return {commit.steps: commit for commit in sorted(commits, key=worth)}


def _format_of(text: bytes) -> int | None:
    """What a document that is not of ours says of its format; None: nothing."""
    with suppress(ValidationError):
        return _Versioned.model_validate_json(text).format
    return None


def _hash(pieces: Pieces) -> str:
    digest = blake3()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _judged(documents: dict[int, CheckpointDocument]) -> list[tuple[float, int]]:
    """(held-out loss, number) of those that have one that is a number, the best first."""
    judged = ((document.validation.get("loss", math.nan), number) for number, document in documents.items() if document.validation)
    return sorted((loss, number) for loss, number in judged if not math.isnan(loss))
