"""The retrainings of a workspace: what each was begun for, and how it ended.

    <workspace>/retrain/begun/<n>.json       retraining n: its dataset version, its champion, and why; written first
    <workspace>/retrain/ended/<n>.json       its outcome; written last
    <workspace>/retrain/given_up/<n>.json    or why it has none: its champion cannot be compared on its dataset version

The next call resumes a retraining that was begun and has neither ended nor been given up. A night on which nothing was due
leaves no trace.
"""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Literal

from pydantic import Field

from sparkring.errors import CommitConflict
from sparkring.pipelines.data.stores.base import numbered
from sparkring.pipelines.data.stores.documents import StrictModel, read_model
from sparkring.pipelines.data.stores.open import open_store

BEGUN, ENDED, GIVEN_UP, LOCK = "begun", "ended", "given_up", ".lock"


class Begun(StrictModel):
    """A retraining that was decided on."""

    format: Literal[1] = 1
    number: int
    dataset_version: int
    rows: int
    """Rows of that version."""
    champion: int | None
    """The model version to start from and to compare with; None if there was none."""
    reasons: tuple[str, ...]
    """The triggers that held."""
    at: str
    """UTC, ISO 8601."""
    claim: str
    """Differs in any two documents: a store may take a document that equals one that is there for the writer's own."""


class Ended(StrictModel):
    """A retraining that is over."""

    format: Literal[1] = 1
    number: int
    outcome: Literal["promoted", "kept"]
    reason: str
    """Why the candidate was promoted, or the champion kept."""
    dataset_version: int
    rows: int
    champion: int | None
    """The champion before; the one that was compared."""
    candidate: int
    run: str
    """The candidate's run."""
    held_out_rows: int
    champion_metrics: dict[str, float]
    """On the test rows of the dataset version; empty if there was no champion."""
    candidate_metrics: dict[str, float]
    gain: float | None
    """Mean loss of the champion less that of the candidate, on the same rows; with its interval. None if nothing was compared."""
    gain_low: float | None
    gain_high: float | None
    p_value: float | None
    drift: dict[str, float] = Field(default_factory=dict)
    """The largest stability indices of features: rows that are new to the champion, against its train rows. Empty if none are new."""
    began_at: str
    at: str
    """UTC, ISO 8601."""


class GivenUp(StrictModel):
    """A retraining that was begun and will have no outcome."""

    format: Literal[1] = 1
    number: int
    reason: str
    at: str
    """UTC, ISO 8601."""


class History:
    """The retrainings of one workspace."""

    def __init__(self, workspace: str) -> None:
        self._store = open_store(f"{workspace}/retrain")
        self.url = self._store.url

    def locked(self) -> AbstractContextManager[None]:
        """Keep other retrainings of this workspace out of the block.

        Raises:
            CommitConflict: one is at it.
        """
        return self._store.lock(LOCK, busy=f"another process retrains in {self.url} now; nothing needs to be done.")

    def ended(self) -> list[Ended]:
        """All that are over, oldest first.

        Raises:
            DocumentDamaged: a document cannot be read.
        """
        return [read_model(self._store, f"{ENDED}/{number}.json", Ended, expected="a retraining", remedy="bring it back from a copy")
                for number in numbered(self._store, ENDED)]

    def begun(self) -> list[Begun]:
        """All that were begun and not given up, oldest first.

        Raises:
            DocumentDamaged: a document cannot be read.
        """
        return [self._begun(number) for number in self._kept()]

    def unfinished(self) -> Begun | None:
        """The one that was begun and has neither ended nor been given up."""
        open_numbers = set(self._kept()) - set(numbered(self._store, ENDED))
        if not open_numbers:
            return None
        return self._begun(max(open_numbers))

    def begin(self, *, dataset_version: int, rows: int, champion: int | None, reasons: tuple[str, ...]) -> Begun:
        """Record that a retraining is due.

        Raises:
            CommitConflict: another process has begun one just now.
        """
        begun = Begun(number=max(numbered(self._store, BEGUN), default=0) + 1, dataset_version=dataset_version, rows=rows,
                      champion=champion, reasons=reasons, at=now(), claim=uuid.uuid4().hex)
        try:
            self._store.put_if_absent(f"{BEGUN}/{begun.number}.json", begun.model_dump_json(indent=1).encode())
        except CommitConflict:
            raise CommitConflict(f"another process began a retraining in {self.url} just now; nothing needs to be done.") from None
        return begun

    def end(self, ended: Ended) -> None:
        """Record the outcome."""
        self._store.put(f"{ENDED}/{ended.number}.json", ended.model_dump_json(indent=1).encode())

    def give_up(self, begun: Begun, *, reason: str) -> None:
        """Record that a retraining will have no outcome, so that the next one can begin."""
        given_up = GivenUp(number=begun.number, reason=reason, at=now())
        self._store.put(f"{GIVEN_UP}/{begun.number}.json", given_up.model_dump_json(indent=1).encode())

    def _kept(self) -> list[int]:
        given_up = set(numbered(self._store, GIVEN_UP))
        return [number for number in numbered(self._store, BEGUN) if number not in given_up]

    def _begun(self, number: int) -> Begun:
        return read_model(self._store, f"{BEGUN}/{number}.json", Begun, expected="a retraining that was begun",
                          remedy="delete it to begin anew")


def now() -> str:
    """The time of a document: UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
