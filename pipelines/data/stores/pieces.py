"""Bytes in several pieces, stored as one file without joining them in memory."""

from __future__ import annotations

import io
from collections.abc import Sequence

Pieces = Sequence[bytes | memoryview]
"""In order; memoryviews have items of one byte."""


class PiecesFile(io.RawIOBase):
    """The pieces as a file to read once. Its length is known, so an HTTP client need not send it in chunks."""

    def __init__(self, pieces: Pieces) -> None:
        self._rest = [memoryview(piece) for piece in pieces if len(piece)]
        self._size = sum(map(len, self._rest))

    def __len__(self) -> int:
        """Bytes of all pieces."""
        return self._size

    def readable(self) -> bool:
        """True."""
        return True

    def read(self, size: int | None = -1) -> bytes:
        """The next ``size`` bytes, or all that are left; fewer only at the end."""
        left, parts = self._size if size is None or size < 0 else size, []
        while left and self._rest:
            part, self._rest[0] = self._rest[0][:left], self._rest[0][left:]
            left -= len(part)
            parts.append(part)
            if not self._rest[0]:
                del self._rest[0]
        return b"".join(parts)
