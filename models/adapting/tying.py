"""Parameters that several layers of a network share: one part holds each, and the other layers borrow it while they run.

    bert.embeddings.word_embeddings    the owner, a part of its own
    cls.predictions.decoder.weight     of the layer ``cls``: set before the layer runs, never one of its own parameters
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from torch import nn


class Tie(NamedTuple):
    """A parameter of a layer that is the parameter of another one."""

    layer: str
    """The layer that borrows, by its name in the network."""
    borrowed: str
    """The parameter's name in it, e.g. ``predictions.decoder.weight``."""
    owner: str
    """The module whose own parameter it is, by its name in the network."""
    name: str
    """The parameter's name in the owner, e.g. ``weight``."""


def ties_between(network: nn.Module, layers: Sequence[str]) -> tuple[Tie, ...]:
    """The parameters that several of a network's layers share; the first layer owns them. Ties within one layer stay as they are."""
    owners: dict[int, tuple[str, str]] = {}
    ties = []
    for path, parameter in network.named_parameters(remove_duplicate=False):
        layer = next((layer for layer in layers if path.startswith(f"{layer}.")), None)
        if layer is None:
            continue
        first, first_path = owners.setdefault(id(parameter), (layer, path))
        if first != layer:
            owner, _, name = first_path.rpartition(".")
            ties.append(Tie(layer, path.removeprefix(f"{layer}."), owner, name))
    return tuple(ties)


def without_borrowed(layer: nn.Module, path: str, ties: Sequence[Tie]) -> nn.Module:
    """Take out of a layer the parameters that it borrows, and the modules inside it that are parts of their own."""
    for tie in ties:
        if tie.layer == path:
            owner, _, name = tie.borrowed.rpartition(".")
            del layer.get_submodule(owner)._parameters[name]  # noqa: SLF001 - torch cannot delete what hooks guard
        if tie.owner.startswith(f"{path}."):
            owner, _, name = tie.owner.removeprefix(f"{path}.").rpartition(".")
            layer.get_submodule(owner)._modules.pop(name, None)  # noqa: SLF001 - the same
    return layer


@contextmanager
def lent(ties: Sequence[Tie], modules: Mapping[str, nn.Module]) -> Iterator[None]:
    """Lend borrowed parameters to their layers: as plain attributes, which are no parameters of the layer."""
    borrowers = [(modules[tie.layer].get_submodule(tie.borrowed.rpartition(".")[0]), tie.borrowed.rpartition(".")[2], tie) for tie in ties]
    for borrower, name, tie in borrowers:
        vars(borrower)[name] = modules[tie.owner].get_parameter(tie.name)
    try:
        yield
    finally:
        for borrower, name, _ in borrowers:
            del vars(borrower)[name]
