"""Links that are slower than this machine's: what travels arrives late, by a latency and by what its bytes would take.

Real messages and sums pass by the real transport and reducer; whoever waits for them sleeps on until their time has come. Links are
not shared: messages that are on the way at once do not slow each other down.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from sparkring.conf.schema import RingConfig
from sparkring.pipelines.parallel.allreduce.gradients import BY_HOROVOD, GradientReducer, open_gradient_reducer
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.mesh import Ranks
from sparkring.pipelines.parallel.transports.base import Edge
from sparkring.pipelines.parallel.transports.sidecar import SidecarTransport
from sparkring.pipelines.training.profiling.link_times import MeasuredBackends


@dataclass(frozen=True)
class Link:
    """What a link adds."""

    name: str
    latency_s: float = 0.0
    """To each message, and to each step of a ring."""
    byte_s: float = 0.0
    """To each byte."""

    def message_s(self, num_bytes: float) -> float:
        """Seconds that a message comes later."""
        return self.latency_s + num_bytes * self.byte_s

    def sum_s(self, ranks: int, num_bytes: float) -> float:
        """Seconds that a ring's sum is done later."""
        return 2 * (ranks - 1) * self.message_s(num_bytes / ranks)

    def wires(self) -> MeasuredBackends:
        """Transport and reducer over this link."""
        return MeasuredBackends(transports=(self.open_transport,), open_gradient_reducer=self.open_gradient_reducer)

    def open_transport(self, communicator: Communicator, edges: Sequence[Edge], *, dynamic_shapes: bool = False) -> LateTransport:
        """The sidecar transport over this link."""
        return LateTransport(SidecarTransport(communicator, edges, dynamic_shapes=dynamic_shapes), self)

    def open_gradient_reducer(self, communicator: Communicator, sizes: Sequence[int], dtype: torch.dtype, *, device: torch.device,
                              group: Ranks = (), ring: RingConfig = BY_HOROVOD) -> LateReducer:
        """Training's reducer over this link."""
        reducer = open_gradient_reducer(communicator, sizes, dtype, device=device, group=group, ring=ring)
        return LateReducer(reducer, self.sum_s(len(group) or communicator.context.size, sum(sizes) * dtype.itemsize))


class LateTransport:
    """A transport whose messages say when they were sent, and are handed out when they would have come."""

    def __init__(self, inner: SidecarTransport, link: Link) -> None:
        self._inner, self._link, self.name, self.journal = inner, link, inner.name, inner.journal

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def send(self, edge: Edge, micro_batch: int, tensors: Sequence[Tensor], *, rows: int = 0) -> None:
        """See Transport."""
        self._inner.send(edge, micro_batch, [torch.tensor(time.monotonic(), dtype=torch.float64), *tensors], rows=rows)

    def expect(self, edge: Edge, micro_batch: int, *, rows: int = 0) -> None:
        """See Transport."""
        self._inner.expect(edge, micro_batch, rows=rows)

    def receive(self, edge: Edge, micro_batch: int, *, rows: int = 0) -> list[Tensor]:
        """See Transport; the sender's clock is this rank's, since they share a machine."""
        sent, *tensors = self._inner.receive(edge, micro_batch, rows=rows)
        due = float(sent) + self._link.message_s(sum(tensor.nbytes for tensor in tensors))
        time.sleep(max(0.0, due - time.monotonic()))
        return tensors

    def drain(self) -> None:
        """See Transport."""
        self._inner.drain()

    def close(self) -> None:
        """See Transport."""
        self._inner.close()


class LateReducer:
    """A reducer whose sums are done late."""

    def __init__(self, inner: GradientReducer, late_s: float) -> None:
        self._inner, self._late_s, self.description = inner, late_s, inner.description

    @property
    def buffers(self) -> Sequence[Tensor]:
        """See GradientReducer."""
        return self._inner.buffers

    def ready(self, index: int) -> None:
        """See GradientReducer."""
        self._inner.ready(index)

    def finish(self) -> None:
        """See GradientReducer."""
        self._inner.finish()
        time.sleep(self._late_s)

    def close(self) -> None:
        """See GradientReducer."""
        self._inner.close()
