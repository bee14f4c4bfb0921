"""Blocks of a ``torch.nn.Sequential``: each of its modules is one, so a user's plain model can be cut as it is.

Built in full on every rank, the modules keep their weights. A model too large for that is built ``with torch.device("meta")``,
which costs no memory: each module is then made, with weights from its own seed, where it is needed.
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
from sparkring.models.blocks import LOGITS, Block, BlockList, BlockRun, X, in_turn


def blocks_of(model: nn.Module) -> BlockList:
    """The blocks of a model that lists them, or of a sequence of modules.

    Raises:
        ConfigError: it does neither, or a sequence's modules share parameters.
    """
    if isinstance(model, BlockRun):
        return model.block_list
    if is_chain(model):
        return sequential_blocks(model)
    raise ConfigError(f"{type(model).__name__} cannot be cut into stages: it lists no blocks. Make it a torch.nn.Sequential, or derive it "
                      "from sparkring.models.blocks.BlockRun.")


def is_chain(model: nn.Module) -> TypeGuard[nn.Sequential]:
    """Whether a model is its modules in turn and nothing beside: a class of the user's may have a ``forward`` or weights of its own."""
    return (isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward
            and not model._parameters and not model._buffers)  # noqa: SLF001 - its own, not those of its modules


def sequential_blocks(model: nn.Sequential, *, reads: str = X, writes: str = LOGITS, anew: Callable[[], nn.Module] | None = None,
                      finish: Callable[[Tensor], Tensor] | None = None) -> BlockList:
    """A block a module, named as in ``state_dict``.

    Args:
        model: Its modules take one tensor and return one; on the meta device or built.
        reads: Name of the input tensor.
        writes: Name of what the last module returns.
        anew: Makes such a model once more: each block's module is taken from one of its own, drawn by the block's generator. Default:
            the modules of ``model`` themselves.
        finish: What the last block does with what its module returns.
    """
    children = list(zip((str(name) for name in model._modules), model, strict=True))  # noqa: SLF001 - named_children() drops repeats
    owners = Counter(chain.from_iterable({id(parameter) for parameter in child.parameters()} for _, child in children))
    if any(count > 1 for count in owners.values()):
        names = [name for name, child in children if any(owners[id(parameter)] > 1 for parameter in child.parameters())]
        raise ConfigError(f"modules {', '.join(names)} of the sequence share parameters; list them as blocks that have one part in common "
                          "(sparkring.models.blocks), so that a cut between them keeps it one.")
    last = len(children) - 1
    return BlockList(tuple(
        Block(name, {name: partial(materialised, name, child) if anew is None else partial(_made_anew, name, anew)},
              run=partial(_finished, finish) if finish and place == last else in_turn,
              reads=(X if place else reads,), writes=(X if place < last else writes,))
        for place, (name, child) in enumerate(children)), inputs=(reads,))


def _made_anew(name: str, anew: Callable[[], nn.Module]) -> nn.Module:
    return materialised(name, anew().get_submodule(name))


def _finished(finish: Callable[[Tensor], Tensor], parts: Sequence[nn.Module], x: Tensor) -> Tensor:
    return finish(in_turn(parts, x))


def materialised(name: str, child: nn.Module) -> nn.Module:
    """The module itself, or one with memory and fresh weights if it is a sketch on the meta device.

    Raises:
        ConfigError: it is a sketch that does not say how its weights are drawn.
    """
    if not any(tensor.is_meta for tensor in chain(child.parameters(), child.buffers())):
        return child
    made = copy.deepcopy(child).to_empty(device=torch.get_default_device())
    _tie(made, child)
    for path, module in made.named_modules(prefix=name):
        if any(True for _ in chain(module.parameters(recurse=False), module.buffers(recurse=False))):
            reset = getattr(module, "reset_parameters", None)
            if reset is None:
                raise ConfigError(f"{path} ({type(module).__name__}) lies on the meta device and has no reset_parameters(); add one that "
                                  "draws its initial weights.")
            reset()
    return made


def _tie(made: nn.Module, sketch: nn.Module) -> None:
    """Make one parameter again of those that are one in the sketch, each of which got memory of its own."""
    first: dict[int, nn.Parameter] = {}
    for path, parameter in sketch.named_parameters(remove_duplicate=False):
        owner, _, leaf = path.rpartition(".")
        setattr(made.get_submodule(owner), leaf, first.setdefault(id(parameter), made.get_parameter(path)))
