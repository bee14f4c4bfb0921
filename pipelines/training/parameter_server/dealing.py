"""Which step a free worker takes, and when its update may be applied: steps are dealt in order, and no update is staler than a bound.

    version      number of updates applied so far
    pulled       the version of the weights that a worker computes with
    staleness    of an update: the version at which it is applied, less its pulled one

    bound 2      A pulls 0 --------------------------------------> applied as 2: staleness 2
                 B pulls 0 -> applied as 0, pulls 1 -> applied as 1, pulls 2 -> ready, but held until A is applied

Let the workers under way have the ages a_0 >= a_1 >= ... (version less pulled). Applied in that order, they have the stalenesses
a_j + j. The dealer keeps a_j + j <= bound at all times: it gives out a step only if at most ``bound`` are under way, since the new one
goes last with age 0; and it holds an update as long as the ages of the others, one higher, would break the rule. The oldest update never
breaks it, so one can always be applied, and none is ever staler than the bound. With bound 0 a single step is under way: serial
training.

Pure. Source: the bound is that of Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS
2013, counted in updates and not in clocks, as workers have no fixed share of the steps here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple


class Take(NamedTuple):
    """A worker takes a step, with weights of this version or a later one."""

    worker: int
    step: int
    version: int


class Apply(NamedTuple):
    """A worker's update is the next one."""

    worker: int
    number: int
    """Updates applied before it."""
    staleness: int


class Leave(NamedTuple):
    """A worker gets no more steps."""

    worker: int
    end: int
    """The step after the last one that was given out."""


class Dealer:
    """Deals the steps ``first`` to ``last`` - 1; the version starts at ``first``, too."""

    def __init__(self, first: int, last: int, *, bound: int) -> None:
        """Begin with nothing under way.

        Args:
            first: The first step.
            last: One past the last step.
            bound: The largest staleness of an update; at least 0.
        """
        self._next, self._last, self._bound = first, last, bound
        self._version = first
        self._pulled: dict[int, int] = {}
        """The versions of the workers under way."""
        self._ready: set[int] = set()
        """The workers among them whose update is computed."""
        self._asking: deque[int] = deque()

    @property
    def given_out(self) -> int:
        """The first step that was not given out."""
        return self._next

    def ask(self, worker: int) -> None:
        """A worker is free."""
        self._asking.append(worker)

    def ready(self, worker: int) -> None:
        """A worker has computed the update of its step."""
        self._ready.add(worker)

    def stop(self) -> None:
        """Give out no more steps."""
        self._last = min(self._last, self._next)

    def answers(self) -> Iterator[Take | Apply | Leave]:
        """What may happen now, in this order; each answer counts as done once it is yielded."""
        while True:
            worker = next((one for one in sorted(self._ready, key=self._pulled.__getitem__) if self._may_apply(one)), None)
            if worker is not None:
                self._ready.remove(worker)
                answer = Apply(worker, self._version, self._version - self._pulled.pop(worker))
                self._version += 1
                yield answer
            elif self._asking and self._next >= self._last:
                yield Leave(self._asking.popleft(), self._next)
            elif self._asking and len(self._pulled) <= self._bound:
                worker = self._asking.popleft()
                self._pulled[worker], step = self._version, self._next
                self._next += 1
                yield Take(worker, step, self._version)
            else:
                return

    def _may_apply(self, worker: int) -> bool:
        """Whether the others under way would still all be applied in time."""
        versions = sorted(version for other, version in self._pulled.items() if other != worker)
        return all(self._version + 1 - version + place <= self._bound for place, version in enumerate(versions))
