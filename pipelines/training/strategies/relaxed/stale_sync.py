"""Stale synchronous training: ranks take steps as they become free, and update weights that servers hold.

    worker    take a step -> pull weights -> gradient of all rows of the step -> its turn -> push         no other worker is waited for,
    server    apply updates in the order of their numbers                                                  but for the bound (dealing.py)

Between two quiet points (checkpoints, an epoch's end) ranks are not in step. At one all updates are applied, and all ranks hold the served
weights; so states are saved, restored and evaluated as with replicas.
Source: Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014; Zhang et al., "Staleness-aware async-SGD for
distributed deep learning", IJCAI 2016 (the learning rate by staleness).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from safetensors.torch import load
from torch import Tensor, nn

from sparkring.conf.schema import Config
from sparkring.conf.schema.strategy import StaleSyncConfig
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.loading.loader import Batch
from sparkring.pipelines.parallel.clock import clock_of
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.transports.sidecar import SidecarTransport
from sparkring.pipelines.training.job.optimizer import make_optimizer
from sparkring.pipelines.training.parameter_server.dealing import Dealer
from sparkring.pipelines.training.parameter_server.roles import DEALER, Roles
from sparkring.pipelines.training.parameter_server.server import Ends, Server
from sparkring.pipelines.training.parameter_server.serving import Channel, Distant, Mailbox, Serving
from sparkring.pipelines.training.parameter_server.worker import Worker, by_server
from sparkring.pipelines.training.strategies.replica import Replica
from sparkring.pipelines.training.strategies.sharded_optimizer import owners
from sparkring.pipelines.training.strategies.signals import Signals
from sparkring.pipelines.training.strategies.state import MODEL, OPTIMIZER, dealt, named_tensors, pack, unpack_state
from sparkring.pipelines.training.strategies.step import Inputs, StepResult
from sparkring.pipelines.training.strategies.step_times import Span, StepTimes
from sparkring.pipelines.training.strategies.weighted_mean import to_weighted_mean


class StaleSyncStrategy(Replica):
    """One rank: a worker with a copy of the model, a server of some parameters, or both."""

    def __init__(self, config: Config, manifest: Manifest, inputs: Inputs, communicator: Communicator, *,
                 strategy: StaleSyncConfig) -> None:
        super().__init__(config, manifest, inputs, communicator)
        self.strategy, self._clip_norm = strategy, config.train.optimizer.clip_norm
        rank, size = communicator.context.rank, communicator.context.size
        self.roles = roles = Roles.of(size, strategy.servers)
        self._hosts, self.works = rank in roles.hosts, rank in roles.workers
        owner = owners({name: one.numel() for name, one in self.model.named_parameters() if one.requires_grad}, len(roles.servers))
        self._served_model = copy.deepcopy(self.model)
        served = by_server(self._served_model.named_parameters(), owner, roles.servers)
        self._served = [parameter for parameter in served.get(rank, []) if isinstance(parameter, nn.Parameter)]
        self.optimizer = make_optimizer(self._served, config.train.optimizer)
        self._mailbox = Mailbox(deadline_s=communicator.context.deadline_s) if self._hosts and self.works else None
        one_host = len(set(communicator.context.hosts)) == 1 and communicator.context.shared_memory
        self._stars = {host: SidecarTransport(communicator, [edge for pair in roles.edges(host).values() for edge in pair],
                                              dynamic_shapes=True, shared_memory=one_host)
                       for host in roles.hosts if roles.edges(host)}
        """For the dealer and each server, the transport between it and all workers."""
        held = by_server(self.model.named_parameters(), owner, roles.servers)
        self._worker = Worker({host: self._channel(host) for host in roles.hosts}, held) if self.works else None
        self._sent_bytes = sum(2 * parameter.nbytes for server in held if server != rank for parameter in held[server])
        """Of a step: weights that are pulled from other ranks, and gradients that are pushed to them."""
        self._times = StepTimes(clock_of(inputs.device))
        where = "all ranks" if not roles.apart else f"{len(roles.servers)} of {size} ranks"
        self.description = f"stale_sync: updates up to {strategy.bound} stale, weights served by {where}"

    @contextmanager
    def segment(self, first: int, last: int, *, ends: Ends, stops: Callable[[], bool]) -> Iterator[None]:
        """Serve the steps ``first`` to ``last`` - 1, or to an earlier end, while the block takes them; then all ranks hold the weights.

        Args:
            first: The first step of the segment.
            last: One past its last step.
            ends: Asked on the dealer's rank, in another thread than this one, whether to give out no more steps.
            stops: Asked on the servers' ranks, whether this one is asked to stop.
        """
        rank = self.communicator.context.rank
        with ExitStack() as stack:
            if self._hosts:
                dealer = Dealer(first, last, bound=self.strategy.bound) if rank == DEALER else None
                server = Server(self._served, self.optimizer, workers=self.roles.workers, version=first, dealer=dealer, ends=ends,
                                stops=stops)
                serving = Serving(server, self._stars.get(rank), self.roles.edges(rank), here=rank, mailbox=self._mailbox)
                if self.works:
                    stack.enter_context(serving)
                else:
                    serving.run()
            yield
            if self._worker is not None:
                self._worker.leave()
        if self.roles.apart:  # servers hold a part of the weights each
            weights = pack(self.model.state_dict()) if rank == 0 else b""
            self.model.load_state_dict(load(self.communicator.broadcast_bytes(weights, name="stale_sync.weights")))

    def taken(self, votes: Callable[[], Sequence[float]]) -> Iterator[int]:
        """Take steps within a segment until there are no more; each with its weights pulled. Nothing on ranks that only serve."""
        if self._worker is not None:
            while (found := self._worker.take(votes())) is not None:
                yield found[0]

    def learn(self, batch: Batch, rate: float) -> tuple[StepResult, int]:
        """Compute the update of a step that was taken, and push it when it is its turn; returns the staleness, too."""
        assert self._worker is not None, "ranks that serve take no steps"
        began = self._times.clock.mark()
        loss, weight = self._gradient(batch)
        finite = math.isfinite(loss) and all(bool(parameter.grad.isfinite().all()) for parameter in self.model.parameters()
                                             if parameter.grad is not None)
        if finite and self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self._clip_norm)
        waits = self._times.clock.mark()
        number, staleness = self._worker.turn()
        self._worker.push(number, rate=rate / (1 + staleness) if self.strategy.stale_lr == "inverse" else rate, updates=finite)
        spans: list[Span] = [(waits, self._times.clock.mark())]
        result = StepResult(loss, weight, Signals(), finite, self._times.end(began, spans), sent_bytes=self._sent_bytes)
        return result, staleness

    def part(self) -> dict[str, Tensor]:
        """What this rank saves: a share of the weights, which all hold at a quiet point, and its optimizer's state."""
        context = self.communicator.context
        weights = {MODEL + name: tensor.detach() for name, tensor in self.model.state_dict().items()}
        mine = dealt({name: tensor.numel() for name, tensor in weights.items()}, context.rank, context.size)
        own = {name: tensor for name, tensor in named_tensors([self._served_model], self.optimizer) if name.startswith(OPTIMIZER)}
        return {name: weights[name] for name in mine} | own

    def unpack(self, state: Iterable[bytes]) -> None:
        """Load the weights, and this rank's part of the optimizer's state."""
        unpack_state(state, [self._served_model], self.optimizer, partly=True)
        self.model.load_state_dict(self._served_model.state_dict())

    def take_weights(self, weights: Iterable[bytes]) -> None:
        """Start from given weights."""
        super().take_weights(weights)
        self._served_model.load_state_dict(self.model.state_dict())

    def require_equal(self) -> None:
        """Check that all ranks hold the same weights."""
        self.communicator.require_equal(pack(self.model.state_dict()), what="the model")

    def close(self) -> None:
        """See Strategy."""
        for transport in self._stars.values():
            transport.close()
        if self._mailbox is not None:
            self._mailbox.close()

    def _channel(self, host: int) -> Channel:
        rank = self.communicator.context.rank
        if host == rank:
            assert self._mailbox is not None
            return self._mailbox
        out, back = self.roles.edges(host)[rank]
        return Distant(self._stars[host], out=out, back=back)

    def _gradient(self, batch: Batch) -> tuple[float, float]:
        """Compute the gradient of the mean loss of a whole step; returns that loss and the weight of the rows."""
        for parameter in self.model.parameters():
            parameter.grad = None
        targets = self.inputs.targets(batch.tensors)
        share = self.loss_sum(self.model(**self.inputs.of(batch.tensors, epoch=batch.epoch)), *targets) / batch.global_rows
        share.backward()
        loss, weight = float(share.detach()), float(batch.global_rows)
        if self.inputs.weighted:
            weight = float(targets[1].sum())
            factor = to_weighted_mean(batch.global_rows, weight)
            loss *= factor
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
        return loss, weight
