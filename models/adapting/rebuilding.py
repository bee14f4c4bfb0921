"""Building one part of a network as the network's own constructor does, without the memory and the time of the others.

torch calls a hook for each parameter that a module registers. A constructor registers them in the same order each time,
so the number of a registration says to which path the parameter belongs. Parameters of other paths are put on the meta
device as soon as they are registered: drawing their initial values then costs nothing and takes no random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from sparkring.models.blocks import Factory


class Rebuilder:
    """Builds a network again and again, each time with memory for some of its parameters only."""

    def __init__(self, make: Factory) -> None:
        self._make = make
        registered: list[tuple[nn.Module, str]] = []

        def note(module: nn.Module, name: str, _: nn.Parameter | None) -> bool:
            registered.append((module, name))
            return False

        with torch.random.fork_rng(devices=()), torch.device("cpu"), _kept(note):  # buffers have values also where models are sketched
            self.sketch = make()
        """The network with its parameters on the meta device; its buffers have values."""
        paths = {id(module): path for path, module in self.sketch.named_modules()}
        self._paths = [f"{paths[id(module)]}.{name}".lstrip(".") if id(module) in paths else "" for module, name in registered]

    def part(self, path: str) -> nn.Module:
        """Build the module under this path, drawing its initial weights from torch's generator."""
        numbers = iter(self._paths)
        with _kept(lambda _module, _name, _parameter: next(numbers, "").startswith(f"{path}." if path else "")):
            return self._make().get_submodule(path)


@contextmanager
def _kept(keep: Callable[[nn.Module, str, nn.Parameter | None], bool]) -> Iterator[None]:
    """Put each parameter that a module registers on the meta device, unless it is to be kept."""

    def hook(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if keep(module, name, parameter) or parameter is None or parameter.is_meta:
            return None
        return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    handle = register_module_parameter_registration_hook(hook)  # type: ignore[arg-type]  # torch takes what it returns
    try:
        yield
    finally:
        handle.remove()
