"""Starting from given weights: rank 0 reads their file and broadcasts it, some tensors at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from safetensors.torch import load, save
from torch import Tensor

from sparkring.pipelines.parallel.collectives.keepalive import run_keeping_alive
from sparkring.pipelines.training.job.given_weights import find_weights, fit_of, network_kinds
from sparkring.pipelines.training.loop.setup import RankSetup

PART_BYTES = 64 << 20
"""Most bytes of tensors that are broadcast together."""


def start_from_given(setup: RankSetup) -> None:
    """Put the weights of ``model.weights`` into the model, if there are any; all ranks call this together.

    Raises:
        ConfigError: the file is gone, or not the one that the driver saw; on rank 0.
    """
    if setup.config.model.weights is None:
        return
    communicator = setup.communicator
    parts = run_keeping_alive(communicator, (lambda: list(parts_of(_read(setup)))) if setup.is_first else None, name="start.given") or []
    count = int(communicator.broadcast_bytes(str(len(parts)).encode(), name="start.given.parts"))
    setup.strategy.take_weights(communicator.broadcast_bytes(parts[number] if parts else b"", name=f"start.given.{number}")
                                for number in range(count))


def _read(setup: RankSetup) -> dict[str, Tensor]:
    """The tensors of the file that fit the network."""
    model = setup.config.model
    assert model.weights is not None and model.weights_sha256 is not None, "pinned() comes first"  # noqa: PT018 - one fact
    file = find_weights(model.weights)
    tensors = load(file.read(model.weights_sha256))
    return {name: tensors[name] for name in fit_of(file.kinds(), network_kinds(model, setup.manifest)).taken}


def parts_of(tensors: Mapping[str, Tensor], *, most_bytes: int = PART_BYTES) -> Iterator[bytes]:
    """The tensors as safetensors, in parts of at most so many bytes; a larger tensor is a part of its own."""
    part: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if part and sum(map(_bytes, part.values())) + _bytes(tensor) > most_bytes:
            yield save(part)
            part = {}
        part[name] = tensor
    yield save(part)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
