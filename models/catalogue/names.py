"""Which networks have a name: ``lenet5``, or ``torchvision.resnet34``, ``timm.resnet26``, ``transformers.ViTForImageClassification``.

A user's registered network of the same name comes before these (``own.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from types import MappingProxyType

from sparkring.errors import nearest
from sparkring.models.catalogue import convolutional, language, libraries, small
from sparkring.models.networks import Build

NETWORKS: MappingProxyType[str, Build] = MappingProxyType({
    "linear": small.linear,
    "two_three_two": small.two_three_two,
    "mlp": small.mlp,
    "lenet5": convolutional.lenet5,
    "alexnet": partial(libraries.torchvision_network, "alexnet"),
    "alexnet_cifar": convolutional.alexnet_cifar,
    "resnet18": partial(libraries.torchvision_network, "resnet18"),
    "resnet50": partial(libraries.torchvision_network, "resnet50"),
    "inception": convolutional.inception,
    "bert_base": language.bert_base,
    "bert_large": language.bert_large,
    "gpt2_small": language.gpt2_small,
    "gpt2_medium": language.gpt2_medium,
})
"""Name -> the function that lists the network's blocks; called like a registered network's."""


def find(name: str) -> Build | None:
    """The function of a network by its name; None if there is none.

    Raises:
        EnvironmentProblem: its library is not installed.
    """
    library, dot, inner = name.partition(".")
    if not dot:
        return NETWORKS.get(name)
    return partial(libraries.LIBRARIES[library], inner) if inner in libraries.names_in(library) else None


def guess(name: str, registered: Iterable[str]) -> str:
    """The hint at the network that is most like an unknown name; empty if none is like it."""
    library, dot, _ = name.partition(".")
    return nearest(name, [f"{library}.{inner}" for inner in libraries.names_in(library)] if dot else [*registered, *NETWORKS])
