"""The registry of a workspace: list and register model versions, move the aliases.

    <workspace>/models/versions/<n>.json    a model version, written once
    <workspace>/models/aliases/<k>.json     change k of the aliases; the highest k counts

A change is one ``put_if_absent`` of the next number. So it is atomic on every store, of two at once one is refused, and the history
is kept. The files of a model stay in its run. Each use of a version compares them with the hashes that were registered.
"""

from __future__ import annotations

import hashlib
import uuid
from datetime import UTC, datetime
from typing import Any

from sparkring.errors import CommitConflict, ModelVersionNotFound, RegistryChanged
from sparkring.pipelines.data.stores.base import numbered
from sparkring.pipelines.data.stores.documents import read_model
from sparkring.pipelines.data.stores.open import open_store
from sparkring.spark_jobs.registry.documents import Act, AliasChange, ModelFile, ModelVersion, champions_before

VERSIONS, ALIASES = "versions", "aliases"
NO_CHANGE = AliasChange(number=0, act="proposed", version=0, reason="", at="")
"""The aliases before the first change: nobody has any."""


class Registry:
    """The model versions of one workspace."""

    def __init__(self, workspace: str) -> None:
        self._workspace = workspace
        self._store = open_store(f"{workspace}/models")
        self.url = self._store.url

    def versions(self) -> list[int]:
        """Numbers of the registered versions, oldest first."""
        return numbered(self._store, VERSIONS)

    def version(self, which: str | int) -> ModelVersion:
        """Read a version by its number or alias.

        Raises:
            ModelVersionNotFound: there is no such version, or nobody has the alias.
            DocumentDamaged: its document cannot be read.
        """
        number = self._number(which)
        name = f"{VERSIONS}/{number}.json"
        try:
            return read_model(self._store, name, ModelVersion, expected="a model version",
                              remedy="bring it back from a copy, or evaluate and promote its run again")
        except FileNotFoundError:
            raise ModelVersionNotFound(self.url, wanted=str(which), existing=self.versions()) from None

    def aliases(self) -> AliasChange:
        """The latest change, which says who has which alias."""
        numbers = numbered(self._store, ALIASES)
        return self._change(numbers[-1]) if numbers else NO_CHANGE

    def history(self) -> list[AliasChange]:
        """All changes of the aliases, oldest first."""
        return [self._change(number) for number in numbered(self._store, ALIASES)]

    def register(self, facts: dict[str, Any]) -> ModelVersion:
        """Give a model the next number, or find the number that it has: one of the same run and weights is the same model.

        Args:
            facts: The fields of ``ModelVersion`` but ``version`` and ``created_at``.
        """
        while True:
            numbers = self.versions()
            for known in map(self.version, reversed(numbers)):
                if (known.run, known.weights_sha256) == (facts["run"], facts["weights_sha256"]):
                    return known
            version = ModelVersion(version=max(numbers, default=0) + 1, created_at=_now(), **facts)
            try:
                self._store.put_if_absent(f"{VERSIONS}/{version.version}.json", version.model_dump_json(indent=1).encode())
                return version
            except CommitConflict:
                continue  # another one took the number; it may be this very model

    def promote(self, which: str | int, *, reason: str) -> AliasChange:
        """Make a version the champion, after its files were compared with their hashes.

        Raises:
            ModelVersionNotFound: there is no such version.
            RegistryChanged: its files are not the registered ones.
            CommitConflict: the aliases were changed meanwhile; nothing was done.
        """
        now, version = self.aliases(), self.version(which)
        self.verify(version)
        if now.champion == version.version:
            return now
        candidate = None if now.candidate == version.version else now.candidate
        return self._commit(now, "promoted", version.version, champion=version.version, candidate=candidate, reason=reason)

    def propose(self, which: str | int, *, reason: str) -> AliasChange:
        """Make a version the candidate; see ``promote``."""
        now, number = self.aliases(), self._number(which)
        if now.candidate == number:
            return now
        return self._commit(now, "proposed", number, champion=now.champion, candidate=number, reason=reason)

    def keep(self, *, reason: str) -> AliasChange:
        """End the candidacy: the champion stays."""
        now = self.aliases()
        if now.candidate is None:
            return now
        return self._commit(now, "kept", now.candidate, champion=now.champion, candidate=None, reason=reason)

    def rollback(self, *, reason: str) -> AliasChange:
        """Bring the champion before the present one back; again, the one before that.

        Raises:
            ModelVersionNotFound: there was none before.
            RegistryChanged: its files are not the registered ones any more.
            CommitConflict: the aliases were changed meanwhile; nothing was done.
        """
        now = self.aliases()
        before = champions_before(self.history())
        if not before:
            raise ModelVersionNotFound(self.url, wanted="champion before the present one", existing=self.versions())
        self.verify(self.version(before[-1]))
        return self._commit(now, "rolled back", before[-1], champion=before[-1], candidate=now.candidate, reason=reason)

    def verify(self, version: ModelVersion) -> None:
        """Compare every file of a version with its registered hash.

        Raises:
            RegistryChanged: a file is missing or differs.
        """
        store = open_store(self.run_url(version))
        findings = []
        for file in version.files:
            try:
                found = file_facts(store.read(file.name), name=file.name)
            except FileNotFoundError:
                findings.append(f"{file.name} is missing")
                continue
            if found != file:
                findings.append(f"{file.name} has SHA-256 {found.sha256[:16]}, registered was {file.sha256[:16]}")
        if findings:
            raise RegistryChanged(store.url, version=version.version, findings=findings)

    def run_url(self, version: ModelVersion) -> str:
        """The folder of the run that trained a version."""
        return self.url_of(version.run)

    def url_of(self, run: str) -> str:
        """The folder of a run of this workspace."""
        return f"{self._workspace}/runs/{run}"

    def _number(self, which: str | int) -> int:
        if isinstance(which, int) or which.isdecimal():
            return int(which)
        number = {"champion": self.aliases().champion, "candidate": self.aliases().candidate}.get(which)
        if number is None:
            raise ModelVersionNotFound(self.url, wanted=which, existing=self.versions())
        return number

    def _change(self, number: int) -> AliasChange:
        return read_model(self._store, f"{ALIASES}/{number}.json", AliasChange, expected="a change of the aliases",
                          remedy="bring it back from a copy")

    def _commit(self, now: AliasChange, act: Act, version: int, *, champion: int | None, candidate: int | None, reason: str) -> AliasChange:
        change = AliasChange(number=now.number + 1, act=act, version=version, champion=champion, candidate=candidate, reason=reason,
                             at=_now(), claim=uuid.uuid4().hex)
        try:
            self._store.put_if_absent(f"{ALIASES}/{change.number}.json", change.model_dump_json(indent=1).encode())
        except CommitConflict:
            raise CommitConflict(f"the aliases of {self.url} were changed by another process just now; look with `sparkring models list` "
                                 "and try again.") from None
        return change


def file_facts(content: bytes, *, name: str) -> ModelFile:
    """Describe a file by its bytes."""
    return ModelFile(name=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
