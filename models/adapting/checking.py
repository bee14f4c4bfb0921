"""What a forward pass must not do on ranks that hold different rows: draw random numbers, or change statistics of its own.

The network runs once, in training mode, on tensors without memory. Each operation is watched: torch marks those that
draw from a generator. Buffers that the pass changes are statistics that nobody sums over the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from sparkring.errors import ConfigError


def require_exact(network: nn.Module, inputs: Sequence[Tensor]) -> Any:
    """Run a network once in training mode, and see that its result depends on its rows and its parameters alone.

    Args:
        network: On the meta device, with its layers exchanged (``exchanging.py``).
        inputs: Its inputs, on the meta device.
    Returns:
        What the network returned.
    Raises:
        ConfigError: a module draws random numbers, changes a buffer, or cannot be run on tensors without memory.
    """
    buffers = {path: (buffer, buffer._version) for path, buffer in network.named_buffers()}  # noqa: SLF001 - changes are counted there
    training = network.training
    with _module_paths(network) as paths, _Draws(paths), _AttentionDraws(paths):
        try:
            output = network.train()(*inputs)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"{_where(network, paths)} cannot be run on tensors without memory ({type(error).__name__}: {error}), so "
                              "whether ranks would agree is not known; return the module itself, without adapt.") from error
        finally:
            network.train(training)
    for path, buffer in network.named_buffers():
        before, version = buffers.get(path, (None, 0))
        if buffer is not before or buffer._version != version:  # noqa: SLF001 - the same
            owner = path.rpartition(".")[0]
            raise ConfigError(f"{_where(network, [owner])} changes its buffer {path} while it trains, which would hold the statistics of "
                              "one rank's rows only; use a layer without such statistics, or StepBatchNorm.")
    return output


class _Draws(TorchDispatchMode):
    """Refuses operations that draw random numbers."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._paths = paths

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        names = {each.name for each in func._schema.arguments}  # noqa: SLF001 - operators have no public schema
        if torch.Tag.nondeterministic_seeded in func.tags and "dropout_p" not in names:
            raise _drawn(self._paths, func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class _AttentionDraws(TorchFunctionMode):
    """Refuses attention that drops weights: its operations are marked also if they drop none, or not marked at all."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__()
        self._paths = paths

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention and (args[4] if len(args) > 4 else kwargs.get("dropout_p")):
            raise _drawn(self._paths, "dropout of attention weights")
        return func(*args, **kwargs)


def _drawn(paths: Sequence[str], what: str) -> ConfigError:
    return ConfigError(f"{paths[-1] if paths and paths[-1] else 'the network'} draws random numbers while it trains ({what}), other ones "
                       "on each rank; set its dropout, drop path or stochastic depth to 0 in model.options, or use torch.nn.Dropout, which "
                       "is exchanged.")


@contextmanager
def _module_paths(network: nn.Module) -> Iterator[list[str]]:
    """The names of the modules whose ``forward`` runs, the innermost last."""
    paths: list[str] = []
    handles = []

    def leave(*_: object) -> None:  # what a hook returns would take the place of the module's output
        paths.pop()

    for path, module in network.named_modules():
        handles += [module.register_forward_pre_hook(lambda *_, path=path: paths.append(path)), module.register_forward_hook(leave)]
    try:
        yield paths
    finally:
        for handle in handles:
            handle.remove()


def _where(network: nn.Module, paths: Sequence[str]) -> str:
    path = paths[-1] if paths else ""
    return f"{path or 'the network'} ({type(network.get_submodule(path)).__name__})"
