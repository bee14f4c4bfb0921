"""Any torch network as a list of exact blocks: one function for torchvision's, timm's and transformers' networks, and for one's own."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sparkring.errors import ConfigError
from sparkring.models import no_rows
from sparkring.models.adapting.checking import require_exact
from sparkring.models.adapting.cutting import Cutter
from sparkring.models.adapting.exchanging import CalledDropout, exchanged, seeded_dropout
from sparkring.models.adapting.rebuilding import Rebuilder
from sparkring.models.adapting.recording import NotCuttable, layers, logits_in, record
from sparkring.models.adapting.tying import Tie, ties_between, without_borrowed
from sparkring.models.blocks import LOGITS, Block, BlockList, Factory
from sparkring.models.inputs import CATEGORICAL, IMAGE, NUMERIC, ROW_SEEDS, TOKENS
from sparkring.models.sequential import device_here

if TYPE_CHECKING:
    from sparkring.models.build import Shapes

NETWORK = "network"
"""Name of the only part of a network that is not cut."""


def adapt(make: Factory, shapes: Shapes, *, dropout: float = 0.0) -> BlockList:
    """List the blocks of a network that knows nothing of ranks.

    Batch normalisation becomes ``StepBatchNorm``, dropout ``RowDropout``. Parameters keep their names and are drawn as the network's
    constructor draws them, each layer from its own seed. Blocks are found by running the network on tensors without memory.

    Args:
        make: Builds the network, e.g. ``partial(torchvision.models.resnet50, num_classes=10)``. Called again for each layer, so its
            result may depend on torch's generator only.
        shapes: Shapes of the rows. The network takes ``image``, ``tokens``, or ``numeric`` and ``categorical``, in this order, and
            returns logits, or a mapping with ``logits``.
        dropout: Share that each ``torch.nn.Dropout`` drops, in place of its own; those of 0 keep dropping nothing. Above 0 the blocks
            read ``row_seeds``, too.
    Returns:
        The blocks; a single one, named ``network``, if the network cannot be cut. ``BlockList.uncut`` then says why.
    Raises:
        ConfigError: ranks would compute different results: the network draws random numbers, or keeps statistics of its own. Or it does
            not return logits of the rows' shape.
    """
    network = Rebuilder(make)
    sketch = exchanged(copy.deepcopy(network.sketch), "", dropout=dropout).to("meta")
    _require_exact(sketch, shapes)
    drops = any(isinstance(layer, CalledDropout) and layer.p for layer in sketch.modules())
    if dropout and not drops:
        raise ConfigError(f"model.dropout={dropout:g}, but the network has no torch.nn.Dropout that drops; leave model.dropout out, or "
                          "switch the network's on in model.options.")
    inputs = (*_inputs(shapes, rows=1), *([ROW_SEEDS] if drops else []))
    try:
        return BlockList(_cut(network, sketch, shapes, dropout=dropout), inputs=inputs, whole_rows=True)
    except NotCuttable as reason:
        whole = Block(NETWORK, {NETWORK: partial(_part, network, "", (), dropout)}, run=partial(_whole, drops), reads=inputs,
                      writes=(LOGITS,))
        return BlockList((whole,), inputs=inputs, uncut=str(reason), whole_rows=True)


def _cut(network: Rebuilder, sketch: nn.Module, shapes: Shapes, *, dropout: float) -> tuple[Block, ...]:
    recording = record(sketch, lambda rows: list(_inputs(shapes, rows=rows).values()))
    called = list(dict.fromkeys(step.call for step in recording.steps if isinstance(step.call, str)))
    ties = ties_between(sketch, called)
    row = _inputs(shapes, rows=1)
    factories = {path: partial(_part, network, path, ties, dropout) for path in (*called, *(tie.owner for tie in ties))}
    return Cutter(recording, inputs=tuple(row), shape=tuple(next(iter(row.values())).shape[1:]), layers=layers(sketch),
                  factories=factories, ties=ties).blocks()


def _part(network: Rebuilder, path: str, ties: Sequence[Tie], dropout: float) -> nn.Module:
    """Build one part of the network."""
    sketch = network.sketch.get_submodule(path)
    without_memory = device_here().type == "meta"
    drawn = not without_memory and any(True for _ in sketch.parameters())
    made = without_borrowed(exchanged(network.part(path) if drawn else copy.deepcopy(sketch), path, dropout=dropout), path, ties)
    return made.to("meta") if without_memory else made


def _whole(drops: bool, parts: Sequence[nn.Module], *tensors: Tensor) -> list[Tensor]:  # noqa: FBT001 - bound by position
    """Run a network that is not cut."""
    run = partial(_run_whole, drops)
    return no_rows.of_none(run, parts, tensors, by_rows=[True]) if no_rows.has_none(tensors) else run(parts, *tensors)


def _run_whole(drops: bool, parts: Sequence[nn.Module], *tensors: Tensor) -> list[Tensor]:  # noqa: FBT001 - the same
    inputs, seeds_B = (tensors[:-1], tensors[-1]) if drops else (tensors, None)
    with seeded_dropout(parts, seeds_B, calls=(0,)):
        return [logits_in(parts[0](*inputs))]


def _require_exact(sketch: nn.Module, shapes: Shapes) -> None:
    inputs = list(_inputs(shapes, rows=2).values())
    with torch.random.fork_rng(devices=()), seeded_dropout([sketch], torch.zeros(2, dtype=torch.int64, device="meta"), calls=(0,)):
        output = require_exact(sketch, inputs)
    try:
        found = logits_in(output).shape
    except NotCuttable as reason:
        raise ConfigError(f"the network does not return one tensor of logits while it trains: {reason}; let it return them alone, or as "
                          "logits in a mapping (e.g. model.options: {aux_logits: false}).") from reason
    wanted = (2, shapes.length, shapes.vocabulary) if shapes.length else (2, shapes.num_outputs)
    if found.numel() != math.prod(wanted):
        axes = "(rows, length, vocabulary)" if shapes.length else "(rows, outputs)"
        raise ConfigError(f"the network returns logits of shape {tuple(found)} for two rows, and {axes} are {wanted}; give its last layer "
                          "that size, or name a network for this task.")


def _inputs(shapes: Shapes, *, rows: int) -> dict[str, Tensor]:
    """The inputs of some rows by name, without memory."""
    if shapes.image is not None:
        return {IMAGE: torch.empty(rows, *shapes.image, device="meta")}
    if shapes.length:
        return {TOKENS: torch.empty(rows, shapes.length, dtype=torch.int64, device="meta")}
    numeric = {NUMERIC: torch.empty(rows, shapes.num_numeric, device="meta")} if shapes.num_numeric else {}
    ids = {CATEGORICAL: torch.empty(rows, len(shapes.cardinalities), dtype=torch.int64, device="meta")} if shapes.cardinalities else {}
    return {**numeric, **ids}
