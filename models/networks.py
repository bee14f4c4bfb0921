"""Networks by name: functions that build a torch module for rows of given shapes. Your own come before those of the catalogue.

    @sparkring.network                                          model:
    def wide(shapes, *, width=512):                               kind: tabular
        return nn.Sequential(nn.Linear(shapes.num_numeric, width),  network: wide
                             nn.ReLU(), nn.Linear(width, 1))        options: {width: 256}

A name alone runs no code: a config, a checkpoint or a model card that names a network gets the function that the
program registered, or an error. Spark sends the functions to ranks and tasks like every Python function
(``Registry.carrying``).

``own.py`` says what a function may return. Programs and launchers import this module alone; it does not load torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from sparkring.errors import nearest

if TYPE_CHECKING:
    from torch import nn

    from sparkring.models.blocks import BlockList

Build: TypeAlias = "Callable[..., nn.Module | BlockList]"
Returned = TypeVar("Returned")


class Registry:
    """The networks that one process knows."""

    def __init__(self) -> None:
        self._builds: dict[str, Build] = {}

    def add(self, build: Build) -> None:
        """Register a function under its own name, in place of an earlier one of that name."""
        self._builds[build.__name__] = build

    def builds(self) -> dict[str, Build]:
        """The functions by name."""
        return dict(self._builds)

    def carrying(self, fn: Callable[..., Returned]) -> Callable[..., Returned]:
        """Wrap ``fn`` so that it first registers these networks in the process that calls it."""
        return partial(_called_with, self.builds(), fn) if self._builds else fn


REGISTRY = Registry()
"""The networks of this process. A program registers its own; rank and task processes receive them."""
CATALOGUE = MappingProxyType({
    "linear": "small", "two_three_two": "small", "mlp": "small", "lenet5": "convolutional", "alexnet_cifar": "convolutional",
    "inception": "convolutional", "alexnet": "libraries", "resnet18": "libraries", "resnet50": "libraries", "bert_base": "language",
    "bert_large": "language", "gpt2_small": "language", "gpt2_medium": "language"})
"""The networks that have a name without being registered, each with the module of ``models/catalogue`` that has its function."""
WITH_BATCH_NORM = ("inception", "resnet18", "resnet50")
"""Networks of the catalogue that normalise over the rows of a micro-batch."""


def find(name: str) -> Build | None:
    """The function of a network: the user's, else that of the catalogue or of a library, whose modules are imported now.

    Raises:
        EnvironmentProblem: the library is not installed.
    """
    registered = REGISTRY.builds().get(name)
    library, dot, inner = name.partition(".")
    if registered is not None or not (dot or name in CATALOGUE):
        return registered
    module = import_module(f"sparkring.models.catalogue.{'libraries' if dot else CATALOGUE[name]}")
    found: Build | None = module.network_of(library, inner) if dot else getattr(module, name)
    return found


def guess(name: str) -> str:
    """The hint at the network whose name is most like an unknown one; empty if none is like it."""
    library, dot, _ = name.partition(".")
    if not dot:
        return nearest(name, [*REGISTRY.builds(), *CATALOGUE])
    inner = import_module("sparkring.models.catalogue.libraries").names_in(library)
    return nearest(name, [f"{library}.{each}" for each in inner])


def may_normalise_rows(name: str | None) -> bool:
    """Whether a name is that of a network of the catalogue which may hold batch normalisation; a user's own is never meant."""
    return name is not None and name not in REGISTRY.builds() and ("." in name or name in WITH_BATCH_NORM)


def network(build: Build) -> Build:
    """Register a function under its own name; usable as a decorator.

    Args:
        build: Called with the ``Shapes`` of the rows and the config's ``model.options`` by name, and with ``dropout`` if ``model.dropout``
            is above 0. It is called again for each block that a rank holds, each time with that block's generator: its result may
            depend on its arguments and on torch's generator only.
    """
    REGISTRY.add(build)
    return build


def _called_with(builds: Mapping[str, Build], fn: Callable[..., Returned], *args: Any, **named: Any) -> Returned:
    for build in builds.values():
        REGISTRY.add(build)
    return fn(*args, **named)
