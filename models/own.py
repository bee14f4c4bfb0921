"""Blocks of a network of the user's own (``networks.py``): what its function may return, and what it may not hold.

    torch.nn.Sequential          each of its modules is a block, so that it can be cut between any two
    BlockList, or a BlockRun     as it says
    any other torch.nn.Module    one block, whose ``forward`` takes the rows' tensors by name
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sparkring.errors import ConfigError, nearest
from sparkring.models.blocks import LOGITS, Block, BlockList, BlockRun
from sparkring.models.networks import known
from sparkring.models.sequential import sequential_blocks

NETWORK = "network"
"""The one part of a module that is not cut."""


def own_blocks(name: str, shapes: object, *, inputs: Sequence[str], options: Mapping[str, Any], per_row: bool) -> BlockList:
    """The blocks of a registered network.

    Args:
        name: Under which it is registered.
        shapes: Of the rows.
        inputs: Names of the tensors that it is to take.
        options: Its own arguments.
        per_row: Whether a row has one answer, which the network may give as a column of one.
    Raises:
        ConfigError: nobody registered it, it takes other arguments or returns something else, or it has layers of which every rank would
            make something else.
    """
    networks = known()
    build = networks.get(name)
    if build is None:
        raise ConfigError(f"model.network={name}: no network of that name is known here{nearest(name, networks)}; register its function "
                          "with @sparkring.network before, or name its file: sparkring --networks FILE.py ...")
    try:
        inspect.signature(build).bind(shapes, **options)
    except TypeError as error:
        raise ConfigError(f"model.network={name}: {error}; its function is {name}{inspect.signature(build)}, called with the shapes of the "
                          "rows and model.options.") from None
    make = partial(build, shapes, **options)
    with torch.random.fork_rng(devices=()):
        made = make()
    if isinstance(made, BlockRun):
        return made.block_list
    if isinstance(made, BlockList):
        return made
    if not isinstance(made, nn.Module):
        raise ConfigError(f"model.network={name} returned a {type(made).__name__}; return a torch.nn.Module or a BlockList.")
    _require_alike_everywhere(name, made)
    finish = _flat if per_row else _as_it_is
    anew: Callable[[], nn.Module] = make  # type: ignore[assignment]  # it is called with the same arguments
    if not isinstance(made, nn.Sequential):
        return BlockList((Block(NETWORK, {NETWORK: anew}, run=partial(_by_name, tuple(inputs), finish), reads=tuple(inputs),
                                writes=(LOGITS,)),), inputs=tuple(inputs))
    if len(inputs) != 1:
        names = ", ".join(inputs)
        raise ConfigError(f"model.network={name} is a torch.nn.Sequential, which takes one tensor, and these rows have {names}; return a "
                          f"module whose forward({names}) takes them.")
    return sequential_blocks(made, reads=inputs[0], anew=anew, finish=finish)


def _require_alike_everywhere(name: str, made: nn.Module) -> None:
    for path, module in made.named_modules():
        where = f"model.network={name} holds a {type(module).__name__} ({path or 'itself'})"
        if isinstance(module, nn.modules.batchnorm._BatchNorm):  # noqa: SLF001 - torch has no public name for all of them
            raise ConfigError(f"{where}, whose statistics would be those of one rank's rows; take LayerNorm, GroupNorm or "
                              "sparkring.models.batch_norm.StepBatchNorm.")
        p = getattr(module, "p", 0.0) if isinstance(module, nn.modules.dropout._DropoutNd) else getattr(module, "dropout", 0.0)  # noqa: SLF001
        if isinstance(p, float) and p > 0:
            raise ConfigError(f"{where} with dropout {p:g}, of which every rank would drop something else; take "
                              "sparkring.models.dropout.RowDropout, or set it to 0.")


def _by_name(names: Sequence[str], finish: Callable[[Tensor], Tensor], parts: Sequence[nn.Module], *tensors: Tensor) -> Tensor:
    return finish(parts[0](**dict(zip(names, tensors, strict=True))))


def _flat(logits: Tensor) -> Tensor:
    """(rows, 1) -> (rows,)"""
    return logits.squeeze(1) if logits.dim() == 2 and logits.shape[1] == 1 else logits


def _as_it_is(logits: Tensor) -> Tensor:
    return logits
