"""Worker and server in one process: what is served, and what a server passes on."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sparkring.conf.schema import OptimizerConfig
from sparkring.pipelines.training.job.optimizer import make_optimizer
from sparkring.pipelines.training.parameter_server.dealing import Dealer
from sparkring.pipelines.training.parameter_server.messages import Message
from sparkring.pipelines.training.parameter_server.server import Server
from sparkring.pipelines.training.parameter_server.worker import Worker, by_server

SGD = OptimizerConfig(name="sgd", lr=0.1, momentum=0.9, weight_decay=0.1, schedule="constant")
STEPS = 4


class _Here:
    """The way to a server in this process; a Channel."""

    def __init__(self, server: Server, *, heard: Callable[[Message], object] = lambda _: None) -> None:
        self._server, self._heard, self._answers = server, heard, deque[Message]()

    def send(self, message: Message) -> None:
        self._heard(message)
        self._answers.extend(answer for _, answer in self._server.handle(0, message))

    def receive(self) -> Message:
        return self._answers.popleft()


def _network() -> nn.Sequential:
    """Two layers, of which the first one is not trained."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    network[0].requires_grad_(requires_grad=False)
    return network


def _losses(network: nn.Module) -> list[Callable[[], Tensor]]:
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randn(8, 4, generator=generator) for _ in range(STEPS)]
    return [lambda of=of: (network(of) ** 2).mean() for of in rows]  # type: ignore[misc]


def test_what_is_not_trained_is_neither_served_nor_changed() -> None:
    network, plain = _network(), _network()
    owner = {name: 0 for name, _ in network.named_parameters()}
    served = [one for one in by_server(copy.deepcopy(network).named_parameters(), owner, (0,))[0] if isinstance(one, nn.Parameter)]
    assert len(served) == 2, "weight and bias of the second layer"
    server = Server(served, make_optimizer(served, SGD), workers=[0], version=0, dealer=Dealer(0, STEPS, bound=0))
    worker = Worker({0: _Here(server)}, by_server(network.named_parameters(), owner, (0,)))
    losses = _losses(network)
    while (found := worker.take([0.0, 0.0])) is not None:
        network.zero_grad()
        losses[found[0]]().backward()
        worker.push(worker.turn()[0], rate=SGD.lr, updates=True)
    stepper = make_optimizer(plain.parameters(), SGD)
    for loss in _losses(plain):
        stepper.zero_grad()
        loss().backward()
        stepper.step()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(network.get_parameter(name), parameter, rtol=1e-6, atol=1e-7)


def test_a_server_that_is_asked_to_stop_has_its_workers_vote_for_it() -> None:
    asked, heard = False, list[Message]()
    served = [nn.Parameter(torch.ones(2))]
    dealer = Server([], make_optimizer([], SGD), workers=[0], version=0, dealer=Dealer(0, STEPS, bound=0))
    apart = Server(served, make_optimizer(served, SGD), workers=[0], version=0, stops=lambda: asked)
    worker = Worker({0: _Here(dealer, heard=heard.append), 2: _Here(apart)}, {2: [torch.zeros(2)]})

    def step() -> tuple[float, ...]:
        heard.clear()
        worker.take([0.0, 1.0])
        worker.push(worker.turn()[0], rate=SGD.lr, updates=False)
        return heard[0].numbers

    assert step() == (0.0, 1.0)
    asked = True
    step()  # the weights of this step tell it
    assert step() == (1.0, 1.0)
