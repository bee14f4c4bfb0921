"""A schedule as data: for each worker the list of its actions in a step, in order. Pure; runs nothing.

A worker is one replica of one stage. Replica ``j % replicas[stage]`` of a stage does micro-batch j, so stages may have unequal
numbers of replicas. A chunk is a run of the model's blocks; chunk c lies on stage ``c % num_stages``. Without interleaving,
chunk and stage are the same. The same lists serve the executor, the simulator, the trace and the pictures.

    two stages, three micro-batches, as text      worker 0.0   F0 F1 B0 F2 B1 B2
                                                  worker 1.0   F0 B0 F1 B1 F2 B2

``F3`` is the forward pass of micro-batch 3 in the worker's only chunk, ``F3/1`` that of chunk 1 where it has several.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from sparkring.errors import ConfigError, ScheduleInvalid

_TEXT = re.compile(r"([A-Z]+(?:_[FB])?)(?:(\d+)(?:/(\d+))?)?")


class Kind(StrEnum):
    """The kind of an action. ``B`` is the whole backward pass; ``I`` and ``W`` are its two halves."""

    F = "F"
    B = "B"
    I = "I"  # noqa: E741 - gradient of the chunk's input; papers and torch use this letter
    W = "W"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    REDUCE = "REDUCE"
    STEP = "STEP"


COMPUTE = frozenset({Kind.F, Kind.B, Kind.I, Kind.W})
TRANSFERS = frozenset({Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B})
CLOSING = (Kind.REDUCE, Kind.STEP)
"""Gradients are summed over the stage's replicas, then the optimizer steps: the end of every worker's list."""


class Worker(NamedTuple):
    """One replica of one stage; its shards, if any, act as one."""

    stage: int
    replica: int

    def __str__(self) -> str:
        return f"{self.stage}.{self.replica}"


class Action(NamedTuple):
    """One entry of a worker's list; equal, ordered and hashed by its three values."""

    kind: Kind
    chunk: int = 0
    """The chunk that computes, whose output (``SEND_F``) or input's gradient (``SEND_B``) leaves, or whose input (``RECV_F``)
    or output's gradient (``RECV_B``) comes. 0 for ``REDUCE`` and ``STEP``."""
    micro_batch: int = 0

    def text(self, *, with_chunk: bool = True) -> str:
        """``F3/1``, or ``F3`` without the chunk."""
        if self.kind in CLOSING:
            return self.kind.value
        return f"{self.kind}{self.micro_batch}" + (f"/{self.chunk}" if with_chunk else "")


def parse_action(text: str, *, own_chunk: int | None = None) -> Action:
    """The action that ``text`` names.

    Args:
        text: As ``Action.text`` writes it.
        own_chunk: The chunk if the text names none.
    Raises:
        ScheduleInvalid: the text is no action.
    """
    match = _TEXT.fullmatch(text)
    kind = Kind.__members__.get(match.group(1)) if match else None
    if match and kind in CLOSING and match.group(2) is None:
        return Action(kind)
    chunk = own_chunk if match is None or match.group(3) is None else int(match.group(3))
    if match is None or kind is None or kind in CLOSING or match.group(2) is None or chunk is None:
        raise ScheduleInvalid(f"{text!r} is no action; write a kind ({', '.join(Kind)}), its micro-batch and, where a worker has several, "
                              "its chunk, e.g. F3 or F3/1.")
    return Action(kind, chunk, int(match.group(2)))


@dataclass(frozen=True)
class Schedule:
    """The actions of every worker in one step."""

    name: str
    _: KW_ONLY
    replicas: tuple[int, ...]
    """Replicas of each stage."""
    num_chunks: int
    """A multiple of the number of stages."""
    micro_batches: int
    """Micro-batches of the whole step, over all replicas."""
    actions: Mapping[Worker, tuple[Action, ...]]
    """One list per worker, in the order of its actions."""

    @property
    def num_stages(self) -> int:
        """Stages of the pipeline."""
        return len(self.replicas)

    @cached_property
    def workers(self) -> tuple[Worker, ...]:
        """All workers, stage by stage."""
        return all_workers(self.replicas)

    @cached_property
    def has_transfers(self) -> bool:
        """Whether the lists say when to send and receive."""
        return any(action.kind in TRANSFERS for actions in self.actions.values() for action in actions)

    def owner(self, chunk: int, micro_batch: int) -> Worker:
        """The worker that does ``micro_batch`` of ``chunk``."""
        stage = chunk % self.num_stages
        return Worker(stage, micro_batch % self.replicas[stage])

    def crosses(self, chunk: int, micro_batch: int) -> bool:
        """Whether ``micro_batch`` changes worker between ``chunk`` and the next chunk."""
        return self.owner(chunk, micro_batch) != self.owner(chunk + 1, micro_batch)

    def peer(self, action: Action) -> Worker:
        """The other worker of a transfer."""
        assert action.kind in TRANSFERS, action
        step = 1 if action.kind in (Kind.SEND_F, Kind.RECV_B) else -1
        return self.owner(action.chunk + step, action.micro_batch)

    def text(self, action: Action) -> str:
        """The action as text, without its chunk where a worker has only one."""
        return action.text(with_chunk=self.num_chunks != self.num_stages)


def all_workers(replicas: Sequence[int]) -> tuple[Worker, ...]:
    """All workers, stage by stage."""
    return tuple(Worker(stage, replica) for stage, count in enumerate(replicas) for replica in range(count))


def check_shape(replicas: Sequence[int], micro_batches: int) -> None:
    """Refuse shapes for which there is no schedule.

    Raises:
        ConfigError: there is no stage, a stage without replicas, or no micro-batch.
    """
    if not replicas or min(replicas) < 1:
        raise ConfigError(f"stages have {list(replicas)} replicas; give at least one stage, each with at least one replica.")
    if micro_batches < 1:
        raise ConfigError(f"a step has {micro_batches} micro-batches; it needs at least 1, and 4 times the {len(replicas)} stages "
                          "to keep workers busy.")
