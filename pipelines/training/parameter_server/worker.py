"""A worker's side: it takes a step, pulls the weights from all servers, and pushes its update when it is its turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from sparkring.pipelines.training.parameter_server.messages import Message, Word
from sparkring.pipelines.training.parameter_server.roles import DEALER
from sparkring.pipelines.training.parameter_server.serving import Channel


class Worker:
    """One rank's conversation with the servers."""

    def __init__(self, channels: Mapping[int, Channel], parameters: Mapping[int, Sequence[Tensor]]) -> None:
        """Say nothing yet.

        Args:
            channels: The way to the dealer and to each server.
            parameters: By server, the worker's copies of what that one serves; pulls write them.
        """
        self._channels, self._dealer = channels, channels[DEALER]
        self._stop = False
        """Whether a server's rank is asked to stop."""
        self._served = {server: (channels[server], mine) for server, mine in parameters.items() if mine}

    def take(self, votes: Sequence[float]) -> tuple[int, int] | None:
        """Ask for a step, and pull its weights.

        Args:
            votes: For the dealer (Server ``ends``): whether this rank is asked to stop, and others.
        Returns:
            The step, and the version of the weights at least; None if there are no more steps: the weights are then the last ones.
        """
        self._dealer.send(Message(Word.ASK, (max(votes[0], self._stop), *votes[1:])))
        answer = self._dealer.receive()
        step, version = (*map(int, answer.numbers), 0)[:2]
        if answer.word == Word.LEAVE:
            self.pull(step)
            return None
        self.pull(version)
        return step, version

    @torch.no_grad()
    def pull(self, version: int) -> None:
        """Take the weights of this version, or later ones; from all servers at once."""
        for channel, _ in self._served.values():
            channel.send(Message(Word.PULL, (version,)))
        for channel, mine in self._served.values():
            answer = channel.receive()
            self._stop |= bool(answer.numbers[1])
            for copy, served in zip(mine, answer.tensors, strict=True):
                copy.copy_(served)

    def turn(self) -> tuple[int, int]:
        """Wait until this worker's update may be applied; returns its number and staleness."""
        self._dealer.send(Message(Word.READY))
        number, staleness = map(int, self._dealer.receive().numbers)
        return number, staleness

    def push(self, number: int, *, rate: float, updates: bool) -> None:
        """Send the gradients of all served parameters; without ``updates`` only that there are none."""
        for channel, mine in self._served.values():
            gradients = [_gradient(parameter) for parameter in mine] if updates else []
            channel.send(Message(Word.PUSH, (number, rate), gradients))

    def leave(self) -> None:
        """Tell the dealer and all servers that nothing follows."""
        for channel in self._channels.values():
            channel.send(Message(Word.BYE))


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def by_server(named: Iterator[tuple[str, Tensor]], owner: Mapping[str, int], servers: Sequence[int]) -> dict[int, list[Tensor]]:
    """The parameters that each server serves, in the model's order; those that are not trained are served by none.

    Args:
        named: All parameters by name.
        owner: The place of each parameter's server among ``servers``.
        servers: The servers.
    """
    found: dict[int, list[Tensor]] = {server: [] for server in servers}
    for name, parameter in named:
        if parameter.requires_grad:
            found[servers[owner[name]]].append(parameter)
    return found
