"""The documents of checkpoints: the position of the run, the parts of the state by hash, and their origin.

They are JSON, checked when they are read. ``store.py`` decides their place and which of them count.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sparkring.errors import CheckpointDamaged, ConfigError
from sparkring.pipelines.training.checkpoints.names import PART_NAME, Commit

FORMAT: Final = 6
"""The only format that is written and read."""


class Position(BaseModel):
    """The position of a run: all that it needs to resume, on any number of ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epoch: int = 0
    """The epoch that the next step belongs to."""
    step: int = 0
    """The next step of that epoch."""
    steps_done: int = 0
    """Optimizer steps since the run began."""
    loss_sum: float = 0.0
    """Sum of the loss over the epoch's rows so far, times their weights."""
    weight: float = 0.0
    """Sum of their weights, or their number if they have none; without those of steps that were not finite, from which the model learned
    nothing."""
    rows: int = 0
    """Rows of the epoch so far."""
    rows_digest: str = "0" * 16
    """Order-independent hash of their ids, over all ranks."""
    receipts: str = ""
    """Hash over all ranks' events since the run began (``data/order/receipts.py``); empty at the beginning."""
    seconds: float = 0.0
    """Seconds of the epoch so far."""
    best_score: float | None = None
    """With early stopping: the best score so far that counted as better (evaluation/score.py)."""
    stale_epochs: int = 0
    """With early stopping: epochs since then."""
    to_evaluate: bool = False
    """Whether the epoch before must still be evaluated; ``loss_sum``, ``weight``, ``rows``, ``rows_digest`` and ``seconds`` are
    then that epoch's."""


class CheckpointPart(BaseModel):
    """One file of a state: some of its tensors, whole, as safetensors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=f"^{PART_NAME}$")
    """A file in the data folder; the pattern keeps a document from pointing anywhere else."""
    bytes: int
    blake3: str
    """Hash of the file. BLAKE3 is ten times as fast as SHA-256 on a processor without SHA instructions."""


class CheckpointDocument(BaseModel):
    """The document that is committed: the position, the parts of the state, and their origin."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    format: Literal[6] = FORMAT
    position: Position
    generation: int = Field(default=0, ge=0)
    """The life of the ring that made it."""
    validation: dict[str, float] | None = None
    """Held-out metrics, if the checkpoint ends an epoch."""
    score: float | None = None
    """Their score (evaluation/score.py); None for the loss."""
    content_id: str
    """Content of the dataset version."""
    dataset_version: int
    seed: int
    lanes: int
    batch_rows: int
    code_version: str
    torch_version: str = ""
    config: dict[str, Any] = {}
    """The sections ``model`` and ``train`` of the config."""
    lr: float | None = None
    """Learning rate of the next step, for people: it follows from the position and the config."""
    layout: str = ""
    """The layout of the model over the ranks, for people: any layout resumes from any checkpoint."""
    parts: tuple[CheckpointPart, ...] = ()

    @property
    def best_by(self) -> float:
        """The model of the run is that of the lowest one; NaN if the checkpoint ends no epoch."""
        return (self.validation or {}).get("loss", math.nan) if self.score is None else self.score

    @property
    def commit(self) -> Commit:
        """Its steps and generation, as in its file name."""
        return Commit(self.position.steps_done, self.generation)


class _Versioned(BaseModel):
    """The one field that documents of every format share."""

    model_config = ConfigDict(strict=True)

    format: int


def parse_document(text: bytes, *, where: str) -> CheckpointDocument:
    """Read a document.

    Args:
        text: The document's bytes.
        where: Names the checkpoint in errors.
    Raises:
        CheckpointDamaged: the bytes are no document.
        ConfigError: it is of another format.
    """
    try:
        return CheckpointDocument.model_validate_json(text)
    except ValidationError as error:
        found = _format_of(text)
        if found not in (None, FORMAT):
            raise ConfigError(f"{where} is of format {found}, this version of sparkring reads format {FORMAT}; run the version that "
                              "wrote it, or begin another run. If it is damaged, delete it to resume from the one before.") from None
        raise CheckpointDamaged(f"{where} cannot be read: {str(error).splitlines()[0]}") from None


def _format_of(text: bytes) -> int | None:
    with suppress(ValidationError):
        return _Versioned.model_validate_json(text).format
    return None
