"""One server: some of the model's parameters, to which updates are applied in the order of their numbers. The dealer's also deals steps.

Takes messages and gives answers; carries none (serving.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from sparkring.pipelines.training.parameter_server.dealing import Dealer, Leave, Take
from sparkring.pipelines.training.parameter_server.messages import Message, Word

Answer = tuple[int, Message]
"""(worker, what it is told)."""
Ends = Callable[[int, Sequence[float], int], bool]
"""(worker, its votes, the first step that was not given out) -> whether to give out no more steps."""


class Server:
    """Serves parameters during one segment: until all workers have said good-bye."""

    def __init__(self, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer, *, workers: Sequence[int], version: int,
                 dealer: Dealer | None = None, ends: Ends = lambda *_: False, stops: Callable[[], bool] = lambda: False) -> None:
        """Begin a segment.

        Args:
            parameters: The served ones, which nobody else changes; the dealer may have none.
            optimizer: Updates them.
            workers: The ranks that compute.
            version: Updates applied before this segment.
            dealer: Deals the segment's steps; None on other ranks than the dealer.
            ends: Whether to give out no more steps; asked on the dealer alone.
            stops: Whether this rank is asked to stop; the workers pass it on to the dealer.
        """
        self._parameters, self._optimizer = parameters, optimizer
        self._dealer, self._ends, self._stops = dealer, ends, stops
        self._applied = version
        self._early: dict[int, Message] = {}
        """Updates that came before their turn, by number."""
        self._pulls: deque[tuple[int, int]] = deque()
        """(worker, version) that is not reached yet."""
        self._present = set(workers)

    @property
    def done(self) -> bool:
        """Whether nothing follows."""
        return not self._present

    def handle(self, worker: int, message: Message) -> Iterator[Answer]:
        """Take one message; yields the answers that it allows."""
        match message.word:
            case Word.PULL:
                self._pulls.append((worker, int(message.numbers[0])))
                yield from self._weights()
            case Word.PUSH:
                self._early[int(message.numbers[0])] = message
                while (update := self._early.pop(self._applied, None)) is not None:
                    self._apply(update)
                yield from self._weights()
            case Word.ASK:
                assert self._dealer is not None, "only the dealer is asked"
                if self._ends(worker, message.numbers, self._dealer.given_out):
                    self._dealer.stop()
                self._dealer.ask(worker)
                yield from self._deal()
            case Word.READY:
                assert self._dealer is not None, "only the dealer is told"
                self._dealer.ready(worker)
                yield from self._deal()
            case Word.BYE:
                self._present.remove(worker)

    def _deal(self) -> Iterator[Answer]:
        assert self._dealer is not None
        for answer in self._dealer.answers():
            if isinstance(answer, Take):
                yield answer.worker, Message(Word.TAKE, (answer.step, answer.version))
            elif isinstance(answer, Leave):
                yield answer.worker, Message(Word.LEAVE, (answer.end,))
            else:
                yield answer.worker, Message(Word.APPLY, (answer.number, answer.staleness))

    def _apply(self, update: Message) -> None:
        if update.tensors:
            for parameter, gradient in zip(self._parameters, update.tensors, strict=True):
                parameter.grad = gradient.view_as(parameter)
            for group in self._optimizer.param_groups:
                group["lr"] = update.numbers[1]
            self._optimizer.step()
            self._optimizer.zero_grad()
        self._applied += 1

    def _weights(self) -> Iterator[Answer]:
        """The weights, to each worker whose version is reached; copies, since a message may leave after the next update."""
        waiting, self._pulls = self._pulls, deque()
        for worker, version in waiting:
            if version <= self._applied:
                weights = [parameter.detach().clone() for parameter in self._parameters]
                yield worker, Message(Word.WEIGHTS, (self._applied, self._stops()), weights)
            else:
                self._pulls.append((worker, version))
