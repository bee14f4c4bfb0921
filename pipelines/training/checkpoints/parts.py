"""The parts of a state, read lazily: a rank that resumes holds one part of a large model in memory, not all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from sparkring.errors import CheckpointDamaged, StorageError
from sparkring.pipelines.training.checkpoints.documents import CheckpointPart

AT_HAND_BYTES = 256 << 20
"""Bytes of parts that are kept in memory after the check; the rest is read again when it is used."""


class StateParts(Sequence[bytes]):
    """The parts of one checkpoint. All of them are read and checked when this is made."""

    def __init__(self, read: Callable[[CheckpointPart], bytes], parts: Sequence[CheckpointPart]) -> None:
        """Check every part.

        Args:
            read: Reads a part and checks its hash; CheckpointDamaged if it differs.
            parts: The parts by rank.
        Raises:
            CheckpointDamaged: a part is missing or differs from the committed one.
        """
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
        """Return one part; StorageError if it changed since the check."""
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        number = range(len(self))[index]
        return self._at_hand[number] if number in self._at_hand else self._again(self._parts[number])

    def _again(self, part: CheckpointPart) -> bytes:
        try:
            return self._read(part)
        except CheckpointDamaged as error:  # damaged since the check: the next generation finds it and uses the one before
            raise StorageError(f"{error}; it was whole at the first check") from error
