"""Runs one worker's list of a schedule, action by action. It knows neither losses nor optimizers.

    batch -> [chunk 0] -f0-> [chunk 1] -f1-> [chunk 2] -> loss          F, SEND_F, RECV_F
             [chunk 0] <-b1- [chunk 1] <-b2- [chunk 2] <----            B (or I, later W), SEND_B, RECV_B
    REDUCE, STEP: callbacks (callbacks.py)

The tensors that the blocks list at a border cross it, in that order. Back comes a gradient for each of real or complex numbers:
zeros where the tensor was not used. Neighbouring chunks of one worker hand over in memory. With activation checkpointing, a
forward pass keeps only its inputs and runs again before the backward pass, with the same random numbers. Blocks may work in
place, wherever they are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkring.conf.schema import Recompute
from sparkring.errors import RingError
from sparkring.models.blocks import StageModule, has_gradient
from sparkring.pipelines.parallel.clock import Mark, clock_of
from sparkring.pipelines.parallel.schedules.memory import last_micro_batch
from sparkring.pipelines.parallel.schedules.schedule import CLOSING, TRANSFERS, Action, Kind, Schedule, Worker
from sparkring.pipelines.parallel.stages.backward import LayerOutputs, PendingWeightGradients, SplitBackward, weight_gradients
from sparkring.pipelines.parallel.stages.callbacks import RowsOf, StepCallbacks, Tensors
from sparkring.pipelines.parallel.stages.edges import edge_of, next_receives
from sparkring.pipelines.parallel.stages.leaves import leaf, overwritable
from sparkring.pipelines.parallel.stages.random_state import RandomState
from sparkring.pipelines.parallel.transports.base import Transport
from sparkring.pipelines.parallel.transports.journal import Journal

PassKey = tuple[int, int]
"""Chunk and micro-batch."""
CPU = torch.device("cpu")
FORWARD = frozenset({Kind.F, Kind.SEND_F, Kind.RECV_F})


@dataclass
class _Held:
    """A forward pass that waits for its backward pass."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor] | None = None
    """None: the pass must run again."""
    loss: Tensor | None = None
    noted: LayerOutputs | None = None
    random: RandomState | None = None
    """The random generators before the pass, if the pass must run again."""

    @property
    def differentiable(self) -> list[Tensor]:
        """The inputs whose gradient goes to the previous chunk."""
        return [tensor for tensor in self.inputs.values() if tensor.requires_grad]


class Executor:
    """One worker of a schedule."""

    def __init__(self, schedule: Schedule, worker: Worker, chunks: Mapping[int, StageModule], *, rank_of: Callable[[Worker], int],
                 transport: Transport | None = None, recompute: Recompute = "never", device: torch.device = CPU) -> None:
        """Take this worker's list and chunks.

        Args:
            schedule: A schedule with transfers; the same on all ranks.
            worker: This rank's worker.
            chunks: This worker's chunks by number.
            rank_of: The rank of a worker's shard with this rank's shard number.
            transport: Opened with the schedule's edges (``edges_of``); None if the schedule has no transfers.
            recompute: Activation checkpointing.
            device: Where the chunks compute.
        """
        self._schedule, self._worker, self._chunks, self._rank_of, self._transport = schedule, worker, chunks, rank_of, transport
        self._recompute, self._device, self._clock = recompute, device, clock_of(device)
        self._journal = Journal() if transport is None else transport.journal
        self._actions = schedule.actions[worker]
        self._last = last_micro_batch(schedule, worker)
        self._closing = next((action for action in reversed(self._actions) if action.kind in (Kind.B, Kind.W)), None)
        halves = any(action.kind is Kind.I for action in self._actions)
        self._split = {number: SplitBackward(chunk) for number, chunk in chunks.items()} if halves else {}
        self._held: dict[PassKey, _Held] = {}
        self._inputs: dict[PassKey, Tensors] = {}
        """Inputs of a chunk's forward pass: received, handed over, or made for the next chunk and not yet sent."""
        self._gradients: dict[PassKey, list[Tensor]] = {}
        """Gradients of a chunk's outputs: received, handed over, or made for the previous chunk and not yet sent."""
        self._later: dict[PassKey, PendingWeightGradients] = {}
        self._next_of = next_receives(self._actions, lambda action: edge_of(schedule, action, rank_of))
        self._next_of_predict = next_receives([action for action in self._actions if action.kind in FORWARD],
                                               lambda action: edge_of(schedule, action, rank_of))
        self._rows: RowsOf = _same_rows
        self._losses: list[Tensor] = []
        """The loss of each micro-batch, on the device until the step's end: reading one waits for its pass."""
        self._loss = 0.0
        self._done: list[tuple[Action, Mark, Mark]] = []
        """The last step's actions, each with the marks of its start and end."""

    @property
    def records(self) -> list[tuple[Action, float, float]]:
        """The last step's actions with their start and end, in seconds of ``time.perf_counter``; waits for the device."""
        times = self._clock.host_times([mark for _, *marks in self._done for mark in marks])
        return [(done[0], began_s, ended_s) for done, began_s, ended_s in zip(self._done, times[::2], times[1::2], strict=True)]

    @property
    def waits(self) -> list[tuple[Mark, Mark]]:
        """The spans of the last step in which this worker waited for other stages."""
        return [(began, ended) for action, began, ended in self._done if action.kind in (Kind.RECV_F, Kind.RECV_B)]

    def run(self, work: StepCallbacks, *, rows: RowsOf | None = None) -> float:
        """Run one step.

        Args:
            work: The step's callbacks.
            rows: Rows of a micro-batch; default: all have equally many.
        Returns:
            The part of the step's loss that this worker computed.
        """
        self._rows = rows or _same_rows
        self._losses, self._loss = [], 0.0
        self._done = done = []
        self._announce(self._next_of[None])
        for action in self._actions:
            began = self._clock.mark()
            with self._locating_errors(action):
                self._do(action, work)
            self._announce(self._next_of.get(action, ()))
            done.append((action, began, self._clock.mark()))
        return self._loss

    @torch.no_grad()  # not inference_mode: a transport may touch the tensors from another thread
    def predict(self, batch: Callable[[int], Tensors], *, rows: RowsOf | None = None) -> Iterator[tuple[int, Tensors]]:
        """Run the forward passes alone.

        Args:
            batch: The first chunk's inputs of a micro-batch.
            rows: As in ``run``.
        Yields:
            (micro-batch, the model's outputs), if this worker has the last chunk. Iterate to the end.
        """
        self._rows = rows or _same_rows
        self._announce(self._next_of_predict[None])
        for action in self._actions:
            place = (action.chunk, action.micro_batch)
            if action.kind is Kind.F:
                with self._locating_errors(action):
                    self._journal.note(self._schedule.text(action))
                    inputs = self._inputs.pop(place, None) if action.chunk else batch(action.micro_batch)
                    assert inputs is not None, f"{action.text()} comes before its input"
                    outputs = self._chunks[action.chunk](inputs)
                if self._is_last(action.chunk):
                    yield action.micro_batch, outputs
                else:
                    self._inputs[action.chunk + 1, action.micro_batch] = outputs
            elif action.kind in FORWARD:
                with self._locating_errors(action):
                    self._transfer(action)
                self._announce(self._next_of_predict.get(action, ()))
        if self._transport is not None:
            self._transport.drain()

    def _do(self, action: Action, work: StepCallbacks) -> None:
        place = (action.chunk, action.micro_batch)
        if action.kind not in TRANSFERS:  # the transport notes those
            self._journal.note(self._schedule.text(action))
        if action == self._closing:
            work.last_backward()
        match action.kind:
            case Kind.F:
                self._forward(place, work)
            case Kind.B:
                self._backward(place, work)
            case Kind.I:
                self._first_half(place, work)
            case Kind.W:
                weight_gradients(self._later.pop(place))
            case Kind.REDUCE:
                if self._transport is not None:
                    self._transport.drain()
                work.reduce()
            case Kind.STEP:
                self._loss = sum(torch.stack(self._losses).tolist()) if self._losses else 0.0
                work.step(self._loss)
            case _:
                self._transfer(action)

    @contextmanager
    def _locating_errors(self, action: Action) -> Iterator[None]:
        """Add the rank's position to an error: to the message of ours, in a note to others."""
        try:
            yield
        except Exception as error:
            self._locate(error, action)
            raise

    def _locate(self, error: Exception, action: Action) -> None:
        stage, rank = self._worker.stage, self._rank_of(self._worker)
        unit = "" if action.kind in CLOSING else f"micro-batch {action.micro_batch}, "
        place = f"stage {stage}, {unit}{self._schedule.text(action)}"
        if not isinstance(error, RingError):
            error.add_note(f"rank {rank} ({place})")
        elif not error.place:
            error.at(place, rank=rank, last_actions=self._journal.last())

    # -- forward ---------------------------------------------------------------------------------------------------------

    def _forward(self, place: PassKey, work: StepCallbacks) -> None:
        chunk, micro_batch = place
        given = self._inputs.pop(place, None) if chunk else work.batch(micro_batch)
        assert given is not None, f"F{micro_batch}/{chunk} comes before its input"
        again = self._recompute == "always" or (self._recompute == "except_last" and micro_batch != self._last)
        held = _Held({name: leaf(tensor) for name, tensor in given.items()} if chunk else dict(given),
                     random=RandomState(self._device) if again else None)
        inputs = {name: tensor.clone() for name, tensor in given.items()} if again else overwritable(held.inputs)
        with torch.set_grad_enabled(not again):
            self._compute(place, held, work, inputs)
        assert held.outputs is not None
        if held.loss is None:
            self._inputs[chunk + 1, micro_batch] = {name: tensor.detach() for name, tensor in held.outputs.items()}
        else:
            self._losses.append(held.loss.detach())
        if again:
            held.outputs = held.loss = held.noted = None
        self._held[place] = held

    def _compute(self, place: PassKey, held: _Held, work: StepCallbacks, inputs: Tensors) -> None:
        """Run the forward pass on ``inputs``, which its blocks may overwrite."""
        chunk, micro_batch = place
        module = self._chunks[chunk]
        if chunk in self._split:
            held.outputs, held.noted = self._split[chunk].forward(lambda: module(inputs))
        else:
            held.outputs = module(inputs)
        if self._is_last(chunk):
            held.loss = work.loss(micro_batch, held.outputs)

    # -- backward --------------------------------------------------------------------------------------------------------

    def _backward(self, place: PassKey, work: StepCallbacks) -> None:
        held, roots, gradients = self._roots(place, work)
        if roots:
            torch.autograd.backward(roots, gradients)
        self._hand_back(place, held, [tensor.grad for tensor in held.differentiable])

    def _first_half(self, place: PassKey, work: StepCallbacks) -> None:
        held, roots, gradients = self._roots(place, work)
        assert held.noted is not None
        found, self._later[place] = self._split[place[0]].input_gradients(roots, gradients, held.differentiable, held.noted)
        self._hand_back(place, held, found)

    def _roots(self, place: PassKey, work: StepCallbacks) -> tuple[_Held, list[Tensor], list[Tensor | None]]:
        """A forward pass (run again if necessary), the tensors that its backward pass starts from, and their gradients."""
        held = self._held.pop(place)
        if held.random is not None:
            with held.random.again():
                self._compute(place, held, work, overwritable(held.inputs))
        if held.loss is not None:
            return held, [held.loss] if held.loss.requires_grad else [], [None]
        assert held.outputs is not None
        floats = [tensor for tensor in held.outputs.values() if has_gradient(tensor)]
        paired = [(tensor, gradient) for tensor, gradient in zip(floats, self._gradients.pop(place), strict=True) if tensor.requires_grad]
        return held, [tensor for tensor, _ in paired], [gradient for _, gradient in paired]

    def _hand_back(self, place: PassKey, held: _Held, gradients: list[Tensor | None]) -> None:
        chunk, micro_batch = place
        if chunk:
            self._gradients[chunk - 1, micro_batch] = [
                torch.zeros_like(tensor) if gradient is None else gradient
                for tensor, gradient in zip(held.differentiable, gradients, strict=True)]

    # -- transfers -------------------------------------------------------------------------------------------------------

    def _transfer(self, action: Action) -> None:
        transport = self._transport
        assert transport is not None, f"{action.text()} without a transport"
        edge = edge_of(self._schedule, action, self._rank_of)
        kind, chunk, micro_batch = action
        rows = self._rows(micro_batch)
        match kind:
            case Kind.SEND_F:
                transport.send(edge, micro_batch, list(self._inputs.pop((chunk + 1, micro_batch)).values()), rows=rows)
            case Kind.RECV_F:
                module = self._chunks[chunk]
                names = module.block_list.crossing(module.first)
                self._inputs[chunk, micro_batch] = dict(zip(names, transport.receive(edge, micro_batch, rows=rows), strict=True))
            case Kind.SEND_B:
                transport.send(edge, micro_batch, self._gradients.pop((chunk - 1, micro_batch)), rows=rows)
            case _:
                self._gradients[chunk, micro_batch] = transport.receive(edge, micro_batch, rows=rows)

    def _announce(self, receives: Sequence[Action]) -> None:
        """Announce receives, so that messages arrive while this rank computes: some wires carry only what was announced."""
        for action in receives:
            assert self._transport is not None, f"{action.text()} without a transport"
            edge, rows = edge_of(self._schedule, action, self._rank_of), self._rows(action.micro_batch)
            with self._locating_errors(action):
                self._transport.expect(edge, action.micro_batch, rows=rows)

    def _is_last(self, chunk: int) -> bool:
        return chunk + 1 == self._schedule.num_chunks


def _same_rows(_micro_batch: int) -> int:
    return 0
