"""The list of a workspace's runs: one small document a run, beside its folder.

    <workspace>/runs/<name>.json    the run exists; what it trains on, and its identity (identity.py)
    <workspace>/runs/<name>/        its folder (folder.py)

So listing needs no listing of folders, which object stores lack. Needs neither Spark nor a ring.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.documents import StrictModel, read_model

SUFFIX = ".json"


class RunDocument(StrictModel):
    """A run, written once when it begins."""

    format: Literal[1] = 1
    created_at: str
    """UTC, ISO 8601."""
    dataset_url: str
    identity: dict[str, Any]
    """Everything that changes what the run learns."""

    @classmethod
    def new(cls, identity: dict[str, Any], *, dataset_url: str) -> RunDocument:
        """That of a run that begins now."""
        return cls(created_at=datetime.now(UTC).isoformat(timespec="seconds"), dataset_url=dataset_url, identity=identity)


def document_of(name: str) -> str:
    """The name of a run's document among the runs."""
    return f"{name}{SUFFIX}"


def run_names(runs: Store) -> list[str]:
    """Names of all runs, sorted.

    Args:
        runs: The folder of the runs.
    """
    return [name.removesuffix(SUFFIX) for name in runs.names("") if name.endswith(SUFFIX)]


def read_document_of(runs: Store, name: str) -> RunDocument:
    """The document of a run.

    Args:
        runs: The folder of the runs.
        name: The run's name.
    Raises:
        FileNotFoundError: there is no such run.
        DocumentDamaged: it cannot be read.
    """
    return read_model(runs, document_of(name), RunDocument, expected="the document of a run",
                      remedy=f"bring it back from a copy, or delete it and the folder {name} beside it to start over")
