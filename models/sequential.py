"""The blocks of a ``torch.nn.Sequential``: one for each of its modules, so a user's plain model can be cut unchanged.

A model that is built in full on every rank keeps its weights. A model too large for that is built ``with
torch.device("meta")``, which takes no memory. Each rank then builds only the modules that it holds, with weights drawn
from their own seeds.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TypeGuard

import torch
from torch import Tensor, nn

from sparkring.errors import ConfigError
from sparkring.models import no_rows
from sparkring.models.blocks import LOGITS, Block, BlockList, BlockRun, X, in_turn


def blocks_of(model: nn.Module) -> BlockList:
    """The blocks of a model that lists them, or of a sequence of modules.

    Raises:
        ConfigError: it is neither, or modules of the sequence share parameters.
    """
    if isinstance(model, BlockRun):
        return model.block_list
    if is_chain(model):
        return sequential_blocks(model)
    raise ConfigError(f"{type(model).__name__} cannot be cut into stages: it lists no blocks; make it a torch.nn.Sequential, or derive it "
                      "from sparkring.models.blocks.BlockRun.")


def is_chain(model: nn.Module) -> TypeGuard[nn.Sequential]:
    """Whether a model only calls its modules in turn: a subclass of Sequential may do more, or have its own weights."""
    return (isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward
            and not model._parameters and not model._buffers)  # noqa: SLF001 - its own, not those of its modules


def sequential_blocks(model: nn.Sequential, *, reads: str = X, writes: str = LOGITS, rebuild: Callable[[], nn.Module] | None = None,
                      finish: Callable[[Tensor], Tensor] | None = None) -> BlockList:
    """List one block for each module, named as in ``state_dict``.

    Args:
        model: A sequence of modules that take one tensor and return one; built, or on the meta device.
        reads: Name of the input tensor.
        writes: Name of the tensor that the last module returns.
        rebuild: Builds the model again. Each block then takes its module from a model of its own, drawn by the block's
            generator. Default: the modules of ``model`` themselves.
        finish: Applied by the last block to the result of its module.
    """
    children = list(zip((str(name) for name in model._modules), model, strict=True))  # noqa: SLF001 - named_children() drops repeats
    owners = Counter(chain.from_iterable({id(parameter) for parameter in child.parameters()} for _, child in children))
    if any(count > 1 for count in owners.values()):
        names = [name for name, child in children if any(owners[id(parameter)] > 1 for parameter in child.parameters())]
        raise ConfigError(f"modules {', '.join(names)} of the sequence share parameters; list them as blocks that have one part in common "
                          "(sparkring.models.blocks), so that a cut between them keeps the copies equal.")
    last = len(children) - 1
    return BlockList(tuple(
        Block(name, {name: partial(materialised, name, child) if rebuild is None else partial(_rebuilt_part, name, rebuild)},
              run=partial(_passed, finish if place == last else None),
              reads=(X if place else reads,), writes=(X if place < last else writes,))
        for place, (name, child) in enumerate(children)), inputs=(reads,))


def _rebuilt_part(name: str, rebuild: Callable[[], nn.Module]) -> nn.Module:
    return materialised(name, rebuild().get_submodule(name))


def _passed(finish: Callable[[Tensor], Tensor] | None, parts: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
    return no_rows.of_any(partial(_finished, finish), parts, [x])


def _finished(finish: Callable[[Tensor], Tensor] | None, parts: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
    made = in_turn(parts, x)
    return [finish(made) if finish else made]


def device_here() -> torch.device:
    """The device on which tensors are made here; of ``with torch.device(...)``, ``get_default_device`` of torch 2.6 does not know."""
    return torch.empty(0).device


def materialised(name: str, child: nn.Module) -> nn.Module:
    """The module itself; or, if it is on the meta device, a copy with memory and newly drawn weights. Where all modules are built on the
    meta device, to look at them, it stays there.

    Raises:
        ConfigError: it is on the meta device, and a module in it has no ``reset_parameters``.
    """
    device = device_here()
    if device.type == "meta" or not any(tensor.is_meta for tensor in chain(child.parameters(), child.buffers())):
        return child
    made = copy.deepcopy(child).to_empty(device=device)
    _tie(made, child)
    for path, module in made.named_modules(prefix=name):
        if any(True for _ in chain(module.parameters(recurse=False), module.buffers(recurse=False))):
            reset = getattr(module, "reset_parameters", None)
            if reset is None:
                raise ConfigError(f"{path} ({type(module).__name__}) is on the meta device and has no reset_parameters(); add one that "
                                  "draws its initial weights.")
            reset()
    return made


def _tie(made: nn.Module, sketch: nn.Module) -> None:
    """Tie the parameters of ``made`` that are tied in ``sketch``: ``to_empty`` gave each of them its own memory."""
    first: dict[int, nn.Parameter] = {}
    for path, parameter in sketch.named_parameters(remove_duplicate=False):
        owner, _, leaf = path.rpartition(".")
        setattr(made.get_submodule(owner), leaf, first.setdefault(id(parameter), made.get_parameter(path)))
