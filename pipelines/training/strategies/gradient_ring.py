"""The exact gradient: buckets of a model's gradients, summed over the ranks while the backward pass fills them.

A rank differentiates (sum of the losses of its rows) / (rows of the step over all ranks), so the *sum* over the ranks
is the gradient of the mean loss of the whole step: equal to serial training for any distribution of rows. An average of
the ranks' averages is not, if ranks hold unequal numbers of rows.

    parameters  p0 p1 p2 p3 p4          backward reaches p4 first
    buckets     [ p4 p3 ] [ p2 p1 p0 | loss ]
                 ready ->  summed while the pass continues

The tail of the last bucket carries the step's loss, the weights of its rows and the ranks' signals (signals.py), so every
rank gets their sums without another exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from sparkring.conf.schema import RingConfig
from sparkring.errors import ConfigError
from sparkring.pipelines.parallel.allreduce.gradients import BY_HOROVOD, OpenGradientReducer, open_gradient_reducer
from sparkring.pipelines.parallel.clock import clock_of
from sparkring.pipelines.parallel.collectives.buckets import Bucket, bucket_bytes, plan_buckets
from sparkring.pipelines.parallel.collectives.communicator import Communicator
from sparkring.pipelines.parallel.mesh import Ranks, host_leaders
from sparkring.pipelines.training.strategies.signals import Signals
from sparkring.pipelines.training.strategies.step_times import Span

TAIL = 5
"""Numbers after the gradients of the last bucket: the loss, the weight and the signals."""


class GradientRing:
    """Makes ``loss.backward()`` leave the sum over all ranks in every ``parameter.grad``. A step:

        ring.begin(loss_sum)      # this rank's share of the step's loss
        loss.backward()           # skipped by a rank without rows
        step_loss = ring.finish() # every .grad is now the sum over the ranks
        optimizer.step()

    With micro-batches: ``ring.begin()``, then the backward passes, ``ring.last_pass(loss_sum)`` before the last one.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], communicator: Communicator, *, bucket_mb: float, group: Ranks = (),
                 ring: RingConfig = BY_HOROVOD, open_gradient_reducer: OpenGradientReducer = open_gradient_reducer) -> None:
        """Allocate the buckets and hook the parameters that need gradients.

        Args:
            parameters: The model's parameters, in its order; there may be none, as in a stage of activations only.
            communicator: The started ring; all its ranks create their GradientRing at the same point.
            bucket_mb: Approximate megabytes of a bucket; between hosts at most so many (collectives/buckets.py).
            group: Ranks that hold these parameters and sum together, including this one; default all.
            ring: How gradients are summed between hosts.
            open_gradient_reducer: Opens the reducer.
        Raises:
            ConfigError: parameters of several types or devices, which one flat bucket cannot hold.
        """
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        kinds = {(parameter.dtype, parameter.device) for parameter in self._parameters}
        if len(kinds) > 1:
            raise ConfigError(f"the model's parameters are of {sorted(map(str, kinds))}; give all of them one type and one device.")
        ((dtype, device),) = kinds or {(torch.get_default_dtype(), torch.device(communicator.context.device))}
        sizes = [parameter.numel() for parameter in self._parameters]
        hosts = communicator.context.hosts
        num_hosts = len(host_leaders(group or tuple(range(len(hosts))), hosts))
        closed_at = bucket_bytes(sum(sizes) * dtype.itemsize, num_hosts=num_hosts, most=bucket_mb * 1e6)
        self._buckets = plan_buckets(sizes, bucket_elements=max(1, int(closed_at) // dtype.itemsize)) or [Bucket((), (), 0)]
        lengths = [bucket.length for bucket in self._buckets]
        self._rounds = ring.wire != "exact" and num_hosts > 1 and bool(sizes)
        """Whether gradients are rounded on their way: then the tail, which is not, has a buffer of its own."""
        if self._rounds:
            lengths.append(0)
        lengths[-1] += TAIL
        self._reducer = open_gradient_reducer(communicator, lengths, dtype, device=device, group=group, ring=ring)
        self.description = self._reducer.description
        self._clock = clock_of(device)
        self.waits: list[Span] = []
        """Spans of the last step that were spent on summing and waiting for other ranks."""
        self.signals = Signals()
        """Before a step this rank's votes, after it the sums of all ranks' votes."""
        self.weight = 0.0
        """After a step the sum of the weights that the ranks gave."""
        self._views = self._make_views()
        self._bucket_of = {number: index for index, bucket in enumerate(self._buckets) for number in bucket.parameters}
        self._missing = [set(bucket.parameters) for bucket in self._buckets]
        """For each bucket, the parameters that the last pass has not reached yet."""
        self._untouched = set(range(len(self._parameters)))
        """The parameters that no pass of this step has reached yet."""
        self._more = False
        self._alone = tuple(group) == (communicator.context.rank,)
        """Whether no other rank holds these parameters: gradients then stay where autograd adds them up."""
        self._hooks = [] if self._alone else [parameter.register_post_accumulate_grad_hook(self._make_hook(number))
                                              for number, parameter in enumerate(self._parameters)]

    def begin(self, loss_share: Tensor | float | None = None, *, weight: Tensor | float = 0.0) -> None:
        """Start a step.

        Args:
            loss_share: This rank's share of the step's loss (sum over its rows / rows of the step); None if several
                backward passes follow, and ``last_pass`` gets it.
            weight: Sum of the weights of its rows, if rows have weights.
        """
        self.waits = []
        self._missing = [set(bucket.parameters) for bucket in self._buckets]
        self._untouched = set(range(len(self._parameters)))
        for parameter in self._parameters:
            parameter.grad = None  # autograd then hands over its own tensor instead of adding to one
        self._more = True
        if loss_share is not None:
            self.last_pass(loss_share, weight=weight)

    def last_pass(self, loss_share: Tensor | float, *, weight: Tensor | float = 0.0) -> None:
        """Announce this rank's last backward pass of the step: buckets that it fills can be summed at once."""
        self._more = False
        tail = self._reducer.buffers[-1][-TAIL:]
        tail[0] = loss_share if isinstance(loss_share, float) else loss_share.detach()
        tail[1], tail[2], tail[3], tail[4] = weight, self.signals.stop, self.signals.save, self.signals.writing

    def finish(self) -> float:
        """Send zeros for parameters that no backward pass reached, wait for the sums, and return the step's loss.

        ``weight`` and ``signals`` then hold the sums over the ranks.
        """
        began = self._clock.mark()
        if self._alone:
            for parameter in self._parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            return self._take_tail()
        for index, missing in enumerate(self._missing):
            if missing or not self._parameters:
                for number in missing & self._untouched:
                    self._views[number].zero_()
                missing.clear()
                self._reducer.ready(index)
        if self._rounds:
            self._reducer.ready(len(self._buckets))
        self._reducer.finish()
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.grad = view
        self.waits.append((began, self._clock.mark()))
        return self._take_tail()

    @property
    def sum_bytes(self) -> int:
        """Bytes that are summed in a step, as they travel between hosts."""
        return sum(buffer.nbytes for buffer in self._reducer.buffers) // (2 if self._rounds else 1)

    def scale(self, factor: float) -> None:
        """Multiply the step's gradients, after ``finish``."""
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    @property
    def wait_s(self) -> float:
        """Seconds of the last step spent on summing and waiting for other ranks."""
        return sum(self._clock.seconds(*span) for span in self.waits)

    def finite(self) -> bool:
        """Whether the step's sums hold neither NaN nor infinity; the same on all ranks that sum together."""
        sums = [parameter.grad.sum() for parameter in self._parameters if parameter.grad is not None] if self._alone else [
            buffer.sum() for buffer in self._reducer.buffers]
        return bool(torch.stack([self._reducer.buffers[-1][-TAIL], *sums]).isfinite().all())

    def close(self) -> None:
        """Remove the hooks from the parameters, and release the buckets."""
        for hook in self._hooks:
            hook.remove()
        for parameter in self._parameters:
            parameter.grad = None
        self._views.clear()
        self._reducer.close()

    def _take_tail(self) -> float:
        loss, self.weight, stop, save, writing = self._reducer.buffers[-1][-TAIL:].tolist()
        self.signals = Signals(stop, save, writing)
        return float(loss)

    def _make_views(self) -> list[Tensor]:
        """Each parameter's part of its bucket, in the parameter's shape."""
        views: dict[int, Tensor] = {}
        for bucket, buffer in zip(self._buckets, self._reducer.buffers, strict=False):
            for number, offset in zip(bucket.parameters, bucket.offsets, strict=True):
                parameter = self._parameters[number]
                views[number] = buffer[offset:offset + parameter.numel()].view(parameter.shape)
        return [views[number] for number in range(len(self._parameters))]

    def _make_hook(self, number: int) -> Callable[[Tensor], None]:
        """Make the function to call when the backward pass has computed this parameter's gradient."""
        view, index = self._views[number], self._bucket_of[number]

        def gradient_arrived(parameter: Tensor) -> None:
            if parameter.grad is not None:
                if number in self._untouched:
                    view.copy_(parameter.grad)  # still in the cache: the backward pass has just written it
                else:
                    view.add_(parameter.grad)
                self._untouched.discard(number)
            parameter.grad = None
            if self._more:
                return
            missing = self._missing[index]
            missing.discard(number)
            if not missing:
                began = self._clock.mark()
                self._reducer.ready(index)
                self.waits.append((began, self._clock.mark()))

        return gradient_arrived


def ring_sum_bytes(num_bytes: int, ranks: int) -> int:
    """Bytes that each rank sends while a ring of them sums so many (Patarasuk and Yuan 2009); fewer where ranks share memory."""
    return round(2 * (ranks - 1) * num_bytes / ranks)
