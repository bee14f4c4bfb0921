"""The files of a run's checkpoints in its store, one method for each access. ``fence.py`` and ``store.py`` decide which ones count."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from blake3 import blake3

from sparkring.errors import CheckpointDamaged, ConfigError, StorageError
from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.pieces import Pieces
from sparkring.pipelines.training.checkpoints.documents import CheckpointDocument, CheckpointPart, parse_document
from sparkring.pipelines.training.checkpoints.fence import Fences, fence_name, fences_of
from sparkring.pipelines.training.checkpoints.names import DATA, FENCES, FOLDER, PART_NAME, Commit, commit_of, part_name


class CheckpointFiles:
    """Documents, parts and fences of one run."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def path(self, commit: Commit) -> str:
        """The address of a document, for messages."""
        return self._store.path(commit.name)

    def commits(self) -> list[Commit]:
        """All documents by their names, ascending."""
        return sorted(commit for name in self._store.names(FOLDER) if (commit := commit_of(name)))

    def fences(self) -> Fences:
        """The fences of all generations."""
        return fences_of(self._store.names(FENCES))

    def part_names(self) -> list[str]:
        """Names of all parts, whether or not a document names them."""
        return [name for name in self._store.names(DATA) if re.fullmatch(PART_NAME, name)]

    def put_fence(self, generation: int, *, steps: int) -> None:
        """Record that a generation begins after so many steps."""
        self._store.put(f"{FENCES}/{fence_name(generation, steps)}", b"{}\n")

    def put_part(self, state: Pieces, *, steps: int, rank: int, generation: int) -> CheckpointPart:
        """Write a part under a new name; it is hashed while it is written."""
        name = part_name(steps=steps, rank=rank, generation=generation)
        with ThreadPoolExecutor(1, thread_name_prefix="sparkring-hash") as pool:
            hashing = pool.submit(_hash, state)
            self._store.put_pieces(f"{DATA}/{name}", state)
            return CheckpointPart(name=name, bytes=sum(map(len, state)), blake3=hashing.result())

    def put_document(self, document: CheckpointDocument) -> None:
        """Commit. One process of a generation does this."""
        self._store.put(document.commit.name, document.model_dump_json(indent=1).encode())

    def has(self, commit: Commit) -> bool:
        """Whether the document exists."""
        return self._store.size(commit.name) is not None

    def document(self, commit: Commit) -> CheckpointDocument:
        """Read a document, whether it counts or not.

        Raises:
            CheckpointDamaged: it is gone or cannot be parsed.
            ConfigError: it is of another format.
            StorageError: it cannot be read now.
        """
        where = f"checkpoint {self.path(commit)}"
        return parse_document(self._read(commit.name, where), where=where)

    def part(self, commit: Commit, part: CheckpointPart) -> bytes:
        """Read a part and check its hash.

        Raises:
            CheckpointDamaged: it is gone or differs from the committed one.
            StorageError: it cannot be read now.
        """
        where = f"checkpoint {self.path(commit)}: its part {part.name}"
        state = self._read(f"{DATA}/{part.name}", where)
        found = _hash([state])
        if found != part.blake3:
            raise CheckpointDamaged(f"{where} has {len(state)} bytes with BLAKE3 {found}, it was committed with {part.bytes} and "
                                    f"{part.blake3}")
        return state

    def delete_document(self, commit: Commit) -> None:
        """Delete a document; its parts stay."""
        self._store.delete(commit.name)

    def delete_part(self, name: str) -> None:
        """Delete one part."""
        self._store.delete(f"{DATA}/{name}")

    def delete(self, commit: Commit) -> None:
        """Delete a document, then the parts it names, if it can be read."""
        parts: tuple[CheckpointPart, ...] = ()
        with suppress(CheckpointDamaged):
            parts = self.document(commit).parts
        self.delete_document(commit)
        for part in parts:
            self.delete_part(part.name)

    def drop_part(self, part: CheckpointPart) -> None:
        """Delete a part of a checkpoint that will not be committed, if the storage allows it."""
        with suppress(OSError, ConfigError):
            self.delete_part(part.name)

    def _read(self, name: str, where: str) -> bytes:
        """Read a file. A missing file and failing storage raise different errors: a run that confused them would discard checkpoints."""
        try:
            return self._store.read(name)
        except OSError as error:
            said = str(error).partition("\n")[0] or type(error).__name__
            if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
                raise CheckpointDamaged(f"{where} cannot be read: {said}") from None
            raise StorageError(f"{where} cannot be read now ({said}); this does not show that it is damaged. Repair the storage and run "
                               "the same command again, or delete that checkpoint to resume from the one before.") from error


def _hash(pieces: Pieces) -> str:
    digest = blake3()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()
