"""How far a run has been sent: ``<run>/tracking.json``. Needs no MLflow.

The document is written before MLflow's run is created, with the key by which that run is found again, and after each batch that MLflow
took. So a process that is killed at any moment sends at most its last batch again, which MLflow takes for the one that it has.
"""

from __future__ import annotations

import re
import uuid
from typing import Literal

from pydantic import Field

from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.documents import StrictModel, read_model

DOCUMENT, LOCK = "tracking.json", ".tracking-lock"


class Sent(StrictModel):
    """What MLflow has of a run."""

    format: Literal[1] = 1
    uri: str
    """The server, without user and password; empty for MLflow's own default."""
    experiment: str
    key: str
    """A tag of MLflow's run, by which it is found."""
    mlflow_run_id: str = ""
    """Empty until MLflow's run is known to exist."""
    status: Literal["RUNNING", "FINISHED", "FAILED", "KILLED"] = "RUNNING"
    """Of MLflow's run."""
    generation: int = -1
    """The latest generation that MLflow was told of."""
    steps: int = 0
    """Optimizer steps whose metrics were sent."""
    epochs: int = 0
    """Epochs whose metrics were sent."""
    files: dict[str, str] = Field(default_factory=dict)
    """Artifact -> SHA-256 of the content that was sent."""


def read_sent(store: Store, *, uri: str, experiment: str) -> Sent:
    """What was sent to this experiment of this server; nothing yet, if the run was sent elsewhere or not at all.

    Raises:
        DocumentDamaged: the document cannot be read.
    """
    new = Sent(uri=without_login(uri), experiment=experiment, key=uuid.uuid4().hex)
    try:
        sent = read_model(store, DOCUMENT, Sent, expected="how far a run was sent to MLflow",
                          remedy="delete it to send the run anew, as another run of MLflow")
    except FileNotFoundError:
        return new
    return sent if (sent.uri, sent.experiment) == (new.uri, new.experiment) else new


def write_sent(store: Store, sent: Sent) -> None:
    """Replace the document."""
    store.put(DOCUMENT, sent.model_dump_json(indent=1).encode())


def without_login(uri: str) -> str:
    """An address without user and password."""
    return re.sub(r"//[^/]*@", "//", uri)  # to the last @: a password may hold others
