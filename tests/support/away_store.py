"""A store whose storage is out of reach when the test says so."""

from __future__ import annotations

from sparkring.pipelines.data.local_store import LocalStore


class AwayStore(LocalStore):
    """A local store that fails while ``away``."""

    away = False

    def put(self, name: str, data: bytes) -> None:
        """Or fail."""
        self._require_here()
        super().put(name, data)

    def size(self, name: str) -> int | None:
        """Or fail."""
        self._require_here()
        return super().size(name)

    def _require_here(self) -> None:
        if self.away:
            raise OSError("out of reach")
