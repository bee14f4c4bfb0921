"""The blocks of a user's own network (``networks.py``): what its function may return, and which layers are refused.

    torch.nn.Sequential          each of its modules is a block, so it can be cut between any two
    BlockList, or a BlockRun     the blocks that it lists
    any other torch.nn.Module    one block, whose ``forward`` takes the rows' tensors by name; also a subclass of
                                 Sequential with its own ``forward``
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sparkring.errors import ConfigError
from sparkring.models import no_rows
from sparkring.models.blocks import LOGITS, Block, BlockList, BlockRun, Factory, Result
from sparkring.models.inputs import ROW_SEEDS
from sparkring.models.networks import find, guess
from sparkring.models.sequential import is_chain, materialised, sequential_blocks

NETWORK = "network"
"""Name of the only part of a module that is not cut."""
_RANDOM = (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
"""Layers that draw random numbers while they train, and have no setting against it."""


def own_blocks(name: str, shapes: object, *, inputs: Sequence[str], options: Mapping[str, Any], dropout: float, per_row: bool) -> BlockList:
    """List the blocks of a registered network, or of one of the catalogue.

    Args:
        name: Name under which it is registered, or one of the catalogue (``networks.py``).
        shapes: Shapes of the rows, its first argument.
        inputs: Names of the rows' tensors.
        options: Its further arguments.
        dropout: Its argument of that name, if it has one; above 0 the network takes ``row_seeds``, too.
        per_row: Whether each row has one logit; the network may then return a column of them.
    Raises:
        ConfigError: it is not registered, takes other arguments, returns something else, or has layers whose results
            would differ between ranks.
    """
    make = _function(name, shapes, options, dropout)
    inputs = (*inputs, *([ROW_SEEDS] if dropout else []))
    with torch.random.fork_rng(devices=()):
        made = make()
    finish = _flat if per_row else _as_it_is
    if isinstance(made, BlockRun | BlockList):
        return _listed(name, made.block_list if isinstance(made, BlockRun) else made, finish)
    if not isinstance(made, nn.Module):
        raise ConfigError(f"model.network={name} returned a {type(made).__name__}; return a torch.nn.Module or a BlockList.")
    _require_alike_everywhere(name, made)
    rebuild: Factory = make  # type: ignore[assignment]  # it is called with the same arguments
    if not is_chain(made):
        return BlockList((Block(NETWORK, {NETWORK: partial(_rebuilt, rebuild)}, run=partial(_by_name, _named(name, made, inputs), finish),
                                reads=inputs, writes=(LOGITS,)),), inputs=inputs)
    if len(inputs) != 1:
        names = ", ".join(inputs)
        raise ConfigError(f"model.network={name} is a torch.nn.Sequential, which takes one tensor, but these rows have {names}; return a "
                          f"module whose forward({names}) takes them.")
    return sequential_blocks(made, reads=inputs[0], rebuild=rebuild, finish=finish)


def _function(name: str, shapes: object, options: Mapping[str, Any], dropout: float) -> Callable[[], object]:
    """The function of that name, the user's before the catalogue's, bound to its arguments."""
    build = find(name)
    if build is None:
        raise ConfigError(f"model.network={name}: no network of that name is registered{guess(name)}; register its function "
                          "with @sparkring.network first, or name its file: sparkring --networks FILE.py ...")
    if dropout or "dropout" in inspect.signature(build).parameters:  # also at 0, with which trained models predict
        options = {**options, "dropout": dropout}
    try:
        inspect.signature(build).bind(shapes, **options)
    except TypeError as error:
        raise ConfigError(f"model.network={name}: {error}; its function is {name}{inspect.signature(build)}, called with the shapes of the "
                          "rows and model.options.") from None
    return partial(build, shapes, **options)


def _listed(name: str, blocks: BlockList, finish: Callable[[Tensor], Tensor]) -> BlockList:
    """The user's blocks, with ``finish`` applied to the logits by the last block that writes them."""
    with torch.device("meta"), torch.random.fork_rng(devices=()):
        for part, factory in {part: factory for block in blocks for part, factory in block.parts.items()}.items():
            _require_alike_everywhere(name, factory(), prefix=part)
    output = blocks.outputs[0]
    last = max((place for place, block in enumerate(blocks) if output in block.writes), default=-1)
    return replace(blocks, blocks=tuple(
        replace(block, run=partial(_finishing, finish, block.writes.index(output), block.run, output)) if place == last else block
        for place, block in enumerate(blocks)))


def _require_alike_everywhere(name: str, made: nn.Module, prefix: str = "") -> None:
    for path, module in made.named_modules(prefix=prefix):
        where = f"model.network={name} holds a {type(module).__name__} ({path or 'itself'})"
        tracks = isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats  # noqa: SLF001 - no public name
        if tracks or isinstance(module, nn.modules.batchnorm._BatchNorm):  # noqa: SLF001 - the same
            raise ConfigError(f"{where}, whose statistics would cover one rank's rows only; use LayerNorm, GroupNorm or "
                              "sparkring.models.batch_norm.StepBatchNorm.")
        p = _share_dropped(module)
        if p > 0:
            raise ConfigError(f"{where} with dropout {p:g}, which would drop other elements on each rank; use "
                              "sparkring.models.dropout.RowDropout, or set it to 0.")
        if isinstance(module, _RANDOM):
            raise ConfigError(f"{where}, which would draw other random numbers on each rank; use a layer that draws none.")


def _share_dropped(module: nn.Module) -> float:
    """Share of elements that one of torch's own layers drops, by the generator of its process; 0 for other layers."""
    if isinstance(module, nn.modules.dropout._DropoutNd):  # noqa: SLF001 - torch has no public name for all of them
        return module.p
    return float(module.dropout) if isinstance(module, nn.MultiheadAttention | nn.RNNBase) else 0.0


def _named(name: str, made: nn.Module, inputs: Sequence[str]) -> tuple[str, ...]:
    """Names by which ``forward`` takes the tensors; row seeds that it takes but that do not exist come last, for None."""
    takes = inspect.signature(made.forward)
    names = (*inputs, *([ROW_SEEDS] if ROW_SEEDS in takes.parameters and ROW_SEEDS not in inputs else []))
    try:
        takes.bind(**dict.fromkeys(names))
    except TypeError as error:
        raise ConfigError(f"model.network={name}: {error}; its forward{takes} is called with {', '.join(inputs)} by name"
                          f"{', since model.dropout is above 0' if ROW_SEEDS in inputs else ''}.") from None
    return names


def _rebuilt(rebuild: Factory) -> nn.Module:
    return materialised(NETWORK, rebuild())


def _by_name(names: Sequence[str], finish: Callable[[Tensor], Tensor], parts: Sequence[nn.Module], *tensors: Tensor) -> list[Tensor]:
    return no_rows.of_any(partial(_called, names, finish), parts, tensors)


def _called(names: Sequence[str], finish: Callable[[Tensor], Tensor], parts: Sequence[nn.Module], *tensors: Tensor) -> list[Tensor]:
    return [finish(parts[0](**(dict.fromkeys(names) | dict(zip(names, tensors, strict=False)))))]


def _finishing(finish: Callable[[Tensor], Tensor], place: int, run: Callable[..., Result], output: str,
               parts: Sequence[nn.Module], *tensors: Tensor) -> Result:
    """Run a block, and apply ``finish`` to the one of its results that is named ``output``, or is number ``place``."""
    result = run(parts, *tensors)
    if isinstance(result, Tensor):
        return finish(result)
    if isinstance(result, Mapping):
        return {**result, output: finish(result[output])} if output in result else result
    return [finish(tensor) if number == place else tensor for number, tensor in enumerate(result)]


def _flat(logits: Tensor) -> Tensor:
    """(rows, 1) -> (rows,)"""
    return logits.squeeze(1) if logits.dim() == 2 and logits.shape[1] == 1 else logits


def _as_it_is(logits: Tensor) -> Tensor:
    return logits
