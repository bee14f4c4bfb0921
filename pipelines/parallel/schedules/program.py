"""A schedule and its costs compiled for the simulator: each action with its seconds, and its needs and results as numbers.

Results are numbered: micro-batch j of M in chunk c of C has number c M + j in each of four ranges of C M numbers:

    F is done | the input of F has arrived | the gradient for B or I has arrived | B or I is done
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sparkring.pipelines.parallel.schedules.costs import Costs
from sparkring.pipelines.parallel.schedules.memory import is_checkpointed, last_micro_batch
from sparkring.pipelines.parallel.schedules.schedule import Action, Kind, Schedule, Worker

NOTHING = -1

_F, _B, _I, _W, _SEND_F, _RECV_F, _SEND_B, _RECV_B, _REDUCE, _STEP = Kind  # members are slow to look up by name, thousands of times


class Op(NamedTuple):
    """One action, ready to be played."""

    action: Action
    seconds: float
    need: int = NOTHING
    need_too: int = NOTHING
    makes: int = NOTHING
    """A result that only its own worker needs."""
    brings: int = NOTHING
    """A result that the worker of a neighbouring chunk needs."""
    delay_s: float = 0.0
    """Seconds from its end until that result has arrived."""
    pause_s: float = 0.0
    """Seconds from its end until its worker continues."""


class Delivery(NamedTuple):
    """The result that a computation sends to a neighbouring chunk: number, delay and pause as in ``Op``."""

    brings: int = NOTHING
    delay_s: float = 0.0
    pause_s: float = 0.0


class Program:
    """Numbers and operations of one schedule at given costs."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        self.schedule, self.costs = schedule, costs
        self.block = schedule.num_chunks * schedule.micro_batches
        self._reduce_s = costs.reduce_s or (0.0,) * schedule.num_stages
        self._step_s = costs.step_s or (0.0,) * schedule.num_stages
        self._send_s = costs.send_s or (0.0,) * schedule.num_chunks
        self._receive_s = costs.receive_s or (0.0,) * schedule.num_chunks

    def ops(self, worker: Worker) -> Iterator[Op]:
        """The operations of the worker's list."""
        costs, block, count, last_chunk = self.costs, self.block, self.schedule.micro_batches, self.schedule.num_chunks - 1
        last = last_micro_batch(self.schedule, worker)
        for action in self.schedule.actions[worker]:
            kind, chunk, micro_batch = action
            here = chunk * count + micro_batch
            if kind is _F:
                need = block + here if chunk else NOTHING
                yield Op(action, costs.forward_s[chunk], need, NOTHING, here, *self._output(chunk, micro_batch))
            elif kind is _B or kind is _I:
                seconds = costs.backward_s[chunk] if kind is _B else costs.input_s[chunk]
                if costs.checkpoint and is_checkpointed(costs, action, last):
                    seconds += costs.forward_s[chunk]
                need_too = 2 * block + here if chunk < last_chunk else NOTHING
                yield Op(action, seconds, here, need_too, 3 * block + here, *self._gradient(chunk, micro_batch))
            elif kind is _W:
                yield Op(action, costs.weight_s[chunk], 3 * block + here)
            elif kind is _SEND_F:
                yield self._send(action, here, block + here + count, costs.hop_forward_s[chunk], border=chunk)
            elif kind is _SEND_B:
                yield self._send(action, 3 * block + here, 2 * block + here - count, costs.hop_backward_s[chunk - 1], border=chunk - 1)
            elif kind is _RECV_F:
                yield Op(action, self._receive_s[chunk - 1], block + here)
            elif kind is _RECV_B:
                yield Op(action, self._receive_s[chunk], 2 * block + here)
            else:
                yield Op(action, (self._reduce_s if kind is _REDUCE else self._step_s)[worker.stage])

    def awaited(self, number: int, worker: Worker) -> tuple[str, Worker]:
        """The result behind a number, in words, and the worker whose action brings it."""
        schedule, (what, here) = self.schedule, divmod(number, self.block)
        chunk, micro_batch = divmod(here, schedule.micro_batches)
        backward = _I if any(_I in action for actions in schedule.actions.values() for action in actions) else _B
        kind = (_F, _F, backward, backward)[what]
        source = (chunk, chunk - 1, chunk + 1, chunk)[what]
        owner = schedule.owner(source, micro_batch)
        if owner != worker and schedule.has_transfers:
            kind = _SEND_F if kind is _F else _SEND_B
        whose = "its own" if owner == worker else f"worker {owner}'s"
        return f"{whose} {schedule.text(Action(kind, source, micro_batch))}", owner

    def _output(self, chunk: int, micro_batch: int) -> Delivery:
        """The result that F sends to the next chunk."""
        if chunk == self.schedule.num_chunks - 1:
            return Delivery()
        number = self.block + (chunk + 1) * self.schedule.micro_batches + micro_batch
        return self._delivery(number, self.costs.hop_forward_s[chunk], crosses=self.schedule.crosses(chunk, micro_batch))

    def _gradient(self, chunk: int, micro_batch: int) -> Delivery:
        """The result that B or I sends to the previous chunk."""
        if chunk == 0:
            return Delivery()
        number = 2 * self.block + (chunk - 1) * self.schedule.micro_batches + micro_batch
        return self._delivery(number, self.costs.hop_backward_s[chunk - 1], crosses=self.schedule.crosses(chunk - 1, micro_batch))

    def _delivery(self, brings: int, hop_s: float, *, crosses: bool) -> Delivery:
        if not crosses:
            return Delivery(brings)
        if self.schedule.has_transfers:
            return Delivery()  # the SEND brings it
        return Delivery(brings, hop_s, hop_s if self.costs.send_blocks else 0.0)

    def _send(self, action: Action, need: int, brings: int, hop_s: float, *, border: int) -> Op:
        own_s = self._send_s[border]
        if self.costs.send_blocks:
            return Op(action, own_s + hop_s, need, brings=brings)
        return Op(action, own_s, need, brings=brings, delay_s=hop_s)
