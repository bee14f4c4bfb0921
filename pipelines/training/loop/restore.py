"""Restoring a run's state on all ranks: rank 0 reads the last checkpoint and broadcasts it, part after part."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial

from sparkring.pipelines.data.stores.retry import retry
from sparkring.pipelines.parallel.collectives.keepalive import run_keeping_alive
from sparkring.pipelines.training.checkpoints.documents import Position
from sparkring.pipelines.training.checkpoints.store import Checkpoint
from sparkring.pipelines.training.loop.setup import RankSetup


def restore(setup: RankSetup) -> Position | None:
    """Load each rank's part of the last whole checkpoint; all ranks call this together.

    Returns:
        Its position; None if there is no checkpoint: the state then stays as it is.
    """
    communicator = setup.communicator
    latest = _latest(setup)
    position, state = (latest.document.position, latest.state) if latest else (Position(), ())
    announced = communicator.broadcast_bytes(json.dumps([position.model_dump(), len(state)]).encode(), name="start.position")
    values, num_parts = json.loads(announced)
    if not num_parts:
        return None
    parts = read_parts(state)
    setup.strategy.unpack(communicator.broadcast_bytes(next(parts, b""), name=f"start.state.{number}")
                          for number in range(num_parts))
    return Position.model_validate(values)


def read_parts(state: Sequence[bytes]) -> Iterator[bytes]:
    """Read the parts of a state one after the other; each read is retried while storage is away."""
    def part(number: int) -> bytes:
        return state[number]

    return (retry(partial(part, number)) for number in range(len(state)))


def _latest(setup: RankSetup) -> Checkpoint | None:
    """The last whole checkpoint, on rank 0; damaged ones become warnings."""
    find = partial(retry, setup.checkpoints.latest) if setup.is_first else None
    found = run_keeping_alive(setup.communicator, find, name="start.latest")
    if found is None:
        return None
    checkpoint, damaged = found
    for error in damaged:
        setup.events.write("warning", text=str(error))
    return checkpoint
