"""Weights that a run starts from (``model.weights``): found, read, and compared with the network and with the data. Nothing is unpickled.

    <name>.safetensors          any file: the names and shapes of its tensors are compared
    the folder of a run         its model, which has a card: what the inputs mean is compared, too (same_inputs.py)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from torch.overrides import TorchFunctionMode

from sparkring.conf.schema import ModelConfig
from sparkring.errors import ConfigError, in_one_line
from sparkring.models.build import build_model
from sparkring.pipelines.data.dataset.manifest import Manifest
from sparkring.pipelines.data.stores.base import Store
from sparkring.pipelines.data.stores.open import open_store
from sparkring.pipelines.data.stores.retry import retry
from sparkring.pipelines.training.job.model_files import ModelCard, load_card, weights_name
from sparkring.pipelines.training.job.tasks import shapes_of

SUFFIX = ".safetensors"
_PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
_MOST_HEADER_BYTES = 100_000_000
"""The format's own limit. Source: https://github.com/huggingface/safetensors, section "Format"."""
_CHUNK = 1 << 23


class Kind(NamedTuple):
    """What a tensor must have in common with another to be its value."""

    shape: tuple[int, ...]
    is_float: bool


@dataclass(frozen=True)
class GivenFile:
    """The file of the weights."""

    address: str
    """As in the config."""
    store: Store
    name: str
    card: ModelCard | None
    """Of the run's model; None for a file that was named itself."""

    def sha256(self) -> str:
        """Hash of the file; a card knows its model's.

        Raises:
            ConfigError: there is no such file.
        """
        return self.card.weights_sha256 if self.card else retry(partial(_sha256_of, self))

    def kinds(self) -> dict[str, Kind]:
        """The file's tensors by name; reads its header only.

        Raises:
            ConfigError: there is no such file, or it is no safetensors file.
        """
        return retry(partial(_kinds_of, self))

    def read(self, sha256: str) -> bytes:
        """The whole file.

        Raises:
            ConfigError: it is gone, or not the one with this hash.
        """
        try:
            data = retry(partial(self.store.read, self.name))
        except FileNotFoundError:
            raise _is_missing(self) from None
        found = hashlib.sha256(data).hexdigest()
        if found != sha256:
            raise ConfigError(f"model.weights={self.address} has SHA-256 {found}, this run starts from {sha256}; bring that file back, or "
                              "begin another run.")
        return data


def find_weights(address: str) -> GivenFile:
    """Find the file that ``model.weights`` names.

    Raises:
        ConfigError: it names neither a safetensors file nor a run with a model.
        CheckpointDamaged: the model's card cannot be read.
    """
    if address.endswith(SUFFIX):
        folder, slash, name = address.rpartition("/")
        return GivenFile(address, open_store(folder or slash or "."), name, None)
    if address.lower().endswith(_PICKLED):
        raise ConfigError(f"model.weights={address} is a pickle, which could run code, and sparkring unpickles nothing; in a process that "
                          "may trust it, write safetensors.torch.save_file(torch.load(PATH, weights_only=True), 'weights.safetensors') "
                          "and give that file.")
    for run in dict.fromkeys((address, address.removesuffix("/model"))):
        with suppress(ConfigError):
            card = load_card(run)
            return GivenFile(address, open_store(run), weights_name(card), card)
    raise ConfigError(f"model.weights={address} is no {SUFFIX} file, and no folder of a run that has a model; give one of these.")


def pinned(model: ModelConfig) -> ModelConfig:
    """The network with the hash of its given weights and their whole address; itself without given weights.

    Raises:
        ConfigError: there is no such file, or it has another hash than ``model.weights_sha256``.
    """
    if model.weights is None:
        return model
    file = find_weights(model.weights)
    found = file.sha256()
    if model.weights_sha256 not in (None, found):
        raise ConfigError(f"model.weights={model.weights} has SHA-256 {found}, model.weights_sha256 is {model.weights_sha256}; name the "
                          "right file, or leave model.weights_sha256 out.")
    return model.changed(weights=file.store.url if file.card else f"{file.store.url}/{file.name}", weights_sha256=found)


def network_kinds(model: ModelConfig, manifest: Manifest) -> dict[str, Kind]:
    """The tensors that the network has for the rows of a dataset, by name; allocates none."""
    with torch.device("meta"), torch.random.fork_rng(devices=()), _Undrawn():
        network = build_model(model, shapes_of(manifest.task, manifest.preprocessing))
    return {name: Kind(tuple(tensor.shape), tensor.is_floating_point()) for name, tensor in network.state_dict().items()}


class _Undrawn(TorchFunctionMode):
    """Draws nothing from the normal distribution: for tensors without memory torch loads its compiler to do so, which takes 2 seconds."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        named = kwargs or {}
        if getattr(func, "__name__", "") == "normal_":  # of a tensor, and of nn.init, which names it
            return args[0] if args else named["tensor"]
        return func(*args, **named)


@dataclass(frozen=True)
class Fit:
    """How the tensors of a file fit those of a network."""

    taken: tuple[str, ...]
    missing: tuple[str, ...]
    """Tensors of the network that the file lacks."""
    extra: tuple[str, ...]
    """Tensors of the file that the network lacks."""
    unequal: tuple[str, ...]
    """Tensors of another shape or type, each with both in words."""

    @property
    def findings(self) -> list[str]:
        """What does not fit, in words, each kind shortened."""
        named = {"missing": self.missing, "unknown": self.extra, "of another shape or type": self.unequal}
        return [f"{len(found)} {words} ({in_one_line(found)})" for words, found in named.items() if found]


def fit_of(given: Mapping[str, Kind], network: Mapping[str, Kind]) -> Fit:
    """Compare the tensors of a file with those of a network. Pure."""
    common = [name for name in network if name in given]
    return Fit(taken=tuple(name for name in common if given[name] == network[name]),
               missing=tuple(name for name in network if name not in given), extra=tuple(name for name in given if name not in network),
               unequal=tuple(f"{name} {_words(given[name])} for {_words(network[name])}" for name in common
                             if given[name] != network[name]))


def require_fit(fit: Fit, model: ModelConfig) -> None:
    """Check that a network can start from a file.

    Raises:
        ConfigError: something does not fit, and ``model.weights_partial`` is not set; or nothing fits.
    """
    if fit.findings and (not model.weights_partial or not fit.taken):
        partly = ", or set model.weights_partial=true to start from the tensors that fit" if fit.taken else ""
        raise ConfigError(f"model.weights={model.weights} does not fit the network, with {', '.join(fit.findings)} tensors; give the "
                          f"network the layers that the file is of{partly}.")


def _words(kind: Kind) -> str:
    return f"{'x'.join(map(str, kind.shape)) or '1'}{'' if kind.is_float else ' integers'}"


def _kinds_of(file: GivenFile) -> dict[str, Kind]:
    try:
        with _opened(file) as source:
            length = int.from_bytes(source.read(8), "little")
            header = json.loads(source.read(length) if length <= _MOST_HEADER_BYTES else b"")
        return {name: Kind(tuple(map(int, entry["shape"])), entry["dtype"].startswith(("F", "BF")))
                for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"model.weights={file.address} is not a safetensors file; write it again with "
                          "safetensors.torch.save_file.") from None


def _sha256_of(file: GivenFile) -> str:
    digest = hashlib.sha256()
    with _opened(file) as source:
        while chunk := source.read_buffer(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _opened(file: GivenFile) -> pa.NativeFile:
    if file.store.size(file.name) is None:  # also if it is a folder, or one of its folders is a file
        raise _is_missing(file)
    return file.store.open_input(file.name)


def _is_missing(file: GivenFile) -> ConfigError:
    return ConfigError(f"model.weights={file.address}: there is no file {file.store.path(file.name)}; correct the path.")
