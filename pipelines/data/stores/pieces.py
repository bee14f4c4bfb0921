"""Bytes in several pieces, to be stored as one file without being joined in memory first."""

from __future__ import annotations

import io
from collections.abc import Sequence

Pieces = Sequence[bytes | memoryview]
"""One after the other; a memoryview is of bytes."""


class PiecesFile(io.RawIOBase):
    """The pieces as a file that is read once; its length is known, which spares an HTTP client chunks."""

    def __init__(self, pieces: Pieces) -> None:
        self._rest = [memoryview(piece) for piece in pieces if len(piece)]
        self._size = sum(map(len, self._rest))

    def __len__(self) -> int:
        """Bytes of all."""
        return self._size

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int | None = -1) -> bytes:
        """So many bytes, or all that are left; fewer only at the end."""
        left, parts = self._size if size is None or size < 0 else size, []
        while left and self._rest:
            part, self._rest[0] = self._rest[0][:left], self._rest[0][left:]
            left -= len(part)
            parts.append(part)
            if not self._rest[0]:
                del self._rest[0]
        return b"".join(parts)
